// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The meaning of a store's answer: done, refused for a reason that a person understands, or to be asked again. Private
/// to this folder.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "repo/s3/http.h"

namespace freshet::s3 {

/// For the words of messages.
struct AskedOf {
  std::string place;  ///< "s3://bucket/prefix at http://host".
  std::string bucket;
  std::string region;
  std::string credentials;  ///< Where they come from. Empty: the request was signed by its giver.
};

struct Verdict {
  /// Nothing: done. not_found: there is no such object. already_exists: a creation found one.
  std::optional<Error> error;
  bool ask_again = false;          ///< The same request may succeed soon.
  bool renew_credentials = false;  ///< Newer ones may do.
  /// With an error: the request may have been done, or may be done later.
  bool may_be_done = false;
  Duration pause_min = Duration::zero();  ///< The store's wish, with ask_again.
};

/// `date_unix_s`: the date in the answer. Messages have no context yet. An answer of 2xx is done if it is the store's:
/// a proxy's page is none. So an object's answer has an ETag (`wants_tag`).
Verdict judge(const HttpOutcome& outcome, const AskedOf& asked, std::optional<std::int64_t> date_unix_s,
              bool wants_tag);

}  // namespace freshet::s3
