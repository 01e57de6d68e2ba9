// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the credentials for a bucket come from, in this order:
///
///   1. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN if the credentials have an end.
///   2. The file ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE names another one), in it the part of AWS_PROFILE, or
///      [default].
///
/// A changed file is read again. Web identity, roles, single sign-on, processes and the services of containers and
/// machines are refused by name: unsupported.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/env.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/s3/signature.h"

namespace freshet::s3 {

/// The credentials in the part [profile] of a file's text. Errors name `path`.
Result<Credentials> credentials_in(std::string_view text, std::string_view profile, std::string_view path);

/// Any thread.
class CredentialSource {
 public:
  explicit CredentialSource(const Env& env) : env_(env) {}

  /// Looks whether the file has changed, at most once a second. failed_precondition: there are none, or they are
  /// incomplete. unsupported: a kind that Freshet does not know.
  Result<Credentials> credentials();
  /// The store refused `refused`: reads again. False: they are still the same.
  bool renew(const Credentials& refused);
  /// For messages: "AWS_ACCESS_KEY_ID", or the file and its part.
  std::string origin() const;

 private:
  struct Look {
    std::int64_t changed_ns = 0;
    std::uint64_t inode = 0;
    std::int64_t bytes = 0;
    bool operator==(const Look&) const = default;
  };

  bool from_variables() const;
  std::string path() const;
  std::string profile() const;
  Result<Credentials> load() const;
  Result<Credentials> load_file() const;
  Look look() const;
  void keep(const Credentials& credentials, const Look& seen);

  const Env& env_;
  Mutex mutex_;
  std::optional<Credentials> last_ FRESHET_GUARDED_BY(mutex_);
  Look last_look_ FRESHET_GUARDED_BY(mutex_);
  Time next_look_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::s3
