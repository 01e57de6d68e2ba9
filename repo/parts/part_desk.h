// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the parts of puts wait for their commit: the memory of the process that keeps the repository. It keeps books
/// of which bytes of each tensor have come, and gives whole tensors to Repository::put(). It reads the clock that it is
/// given, starts no thread and writes nothing, so a put that ends without a commit leaves nothing. The limit of memory
/// counts what came, not what a tensor will have: one byte of a large tensor keeps nobody out.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "repo/part_puts.h"

namespace freshet {

/// Any thread.
class PartDesk final : public PartPuts {
 public:
  /// `repository` and `clock` outlive the desk.
  PartDesk(Repository& repository, const Clock& clock, std::uint64_t bytes_max)
      : repository_(repository), clock_(clock), bytes_max_(bytes_max) {}

  Result<PutToken> begin_put(const std::string& model, const VersionId& id,
                             std::shared_ptr<const Architecture> architecture) override FRESHET_EXCLUDES(mutex_);
  /// The same for one of several owners: out_of_space, too, if it has kPartPutsOfOneMax puts open.
  Result<PutToken> begin_put_for(const std::string& owner, const std::string& model, const VersionId& id,
                                 std::shared_ptr<const Architecture> architecture) FRESHET_EXCLUDES(mutex_);
  Status put_parts(const PutToken& token, std::span<const TensorPart> parts) override FRESHET_EXCLUDES(mutex_);
  Result<std::vector<std::optional<Digest>>> part_digests(const PutToken& token) override FRESHET_EXCLUDES(mutex_);
  Result<VersionName> commit_put(const PutToken& token, const Manifest& manifest,
                                 Repository::PutOptions options) override FRESHET_EXCLUDES(mutex_);
  Status abort_put(const PutToken& token) override FRESHET_EXCLUDES(mutex_);

  /// As ProviderRepository has them.
  Result<std::shared_ptr<const void>> keep_open(const PutToken& token) FRESHET_EXCLUDES(mutex_);
  void drop_ended() FRESHET_EXCLUDES(mutex_);

  /// Memory of parts that wait, and of their books.
  std::uint64_t bytes() const { return *bytes_; }

 private:
  class OpenPut;
  /// Keeps a put from ending by time.
  class Use;

  Result<std::shared_ptr<Use>> use(const PutToken& token) FRESHET_EXCLUDES(mutex_);
  void remove(const PutToken& token) FRESHET_EXCLUDES(mutex_);

  Repository& repository_;
  const Clock& clock_;
  const std::uint64_t bytes_max_;
  /// Of all puts; a put that is still in use may outlive its line in puts_.
  const std::shared_ptr<std::atomic<std::uint64_t>> bytes_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  Mutex mutex_;
  std::map<PutToken, std::shared_ptr<OpenPut>> puts_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
