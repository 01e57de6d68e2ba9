// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `external`: versions in a repository, as whole tensors. A tensor that nobody wrote since is inherited from
/// the version before; where that is not known, as after a restart, a tensor with the same bytes is.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/restart/restart_plan.h"
#include "repo/part_puts.h"
#include "repo/repository.h"

namespace freshet::levels {

/// The tag of a version that came from ranks, and how many they were.
inline constexpr std::string_view kRanksTag = "checkpoint.ranks";

/// The architecture of a version of these tensors. Equal at every rank.
Result<std::shared_ptr<const Architecture>> architecture_of(const TensorTable& table);

/// Any thread; put() one at a time.
class ExternalLevel {
 public:
  /// `is_paced`: put() keeps the pace also for what it gives the repository.
  ExternalLevel(std::shared_ptr<Repository> repository, std::string model, bool is_paced = false)
      : repository_(std::move(repository)), model_(std::move(model)), is_paced_(is_paced) {}

  const std::shared_ptr<Repository>& repository() const { return repository_; }
  /// The model's versions there, ascending. What cannot be read for damage, perhaps all, is told in `damaged`, and left
  /// out; without `damaged`, versions are left out, and corrupt is the answer for all.
  Result<std::vector<StoredVersion>> versions(std::vector<std::string>* damaged = nullptr) const;

  /// Brings one there, durably. Nothing happens when it is there. `half` is called when half of what is new was read.
  /// failed_precondition when the repository has a newer version of another job.
  Status put(const ShardedVersion& version, ShardSource& source, Pace& pace, std::vector<BadShard>& bad,
             const std::function<void()>& half, const std::function<bool()>& stop);
  /// The same, where the ranks bring the bytes: `bring` returns when all ranks have brought what they store of these
  /// tensors (indices of the version's table, ascending) to that put by parts. Nothing stays after an error.
  using Bring = std::function<Status(const PutToken& token, std::span<const std::uint32_t> tensors)>;
  Status put_by_parts(const ShardedVersion& version, const Bring& bring);
  /// Of the versions that came from ranks, retires all but the newest `count`.
  Status keep_newest(std::uint32_t count);

  /// A version there as ShardKind::stored: its head, its list of tensors, and bytes of its payload.
  Result<std::vector<std::byte>> head(const Version& version) FRESHET_EXCLUDES(mutex_);
  Result<std::vector<std::byte>> table(const Digest& digest) const FRESHET_EXCLUDES(mutex_);
  Result<std::vector<std::byte>> read(const Version& version, std::span<const ByteRange> ranges)
      FRESHET_EXCLUDES(mutex_);

 private:
  /// The newest version there; for each of its tensors, who wrote it in this job, if that is known.
  struct Newest {
    Manifest manifest;
    std::vector<std::optional<Version>> writers;
  };
  /// A version that is to be put.
  struct Draft {
    Manifest manifest;                    ///< Without owners; digests of inherited tensors, zeros of others.
    std::vector<SegmentName> owners;      ///< Of inherited tensors, until the others came.
    std::vector<std::uint32_t> in_table;  ///< By index in the architecture: the version's tensor.
    std::vector<std::uint32_t> fresh;     ///< Tensors, by index in the architecture, that are not inherited.
  };
  /// False: the newest version there is not the one in newest_. Somebody may have retired that one with its tensors.
  Result<bool> knows_newest() const;
  Status learn_newest();
  /// Nothing when the version is there. failed_precondition as put().
  Result<std::optional<Draft>> draft_of(const ShardedVersion& version);
  /// The repository may have a fresh tensor's bytes: who wrote those that it has isn't known, as after a restart.
  bool is_doubted(const Draft& draft, std::uint32_t at) const;
  /// Notes a fresh tensor's digest and owner. True: the repository has these bytes already.
  bool inherit_equal(Draft& draft, std::uint32_t at, const Digest& digest) const;
  /// The newest version's tensor with that name and form.
  std::optional<std::uint32_t> known_tensor(const TensorSpec& spec) const;
  /// Replaces digests of zeros by those that the repository computed in the put of `name`.
  Status learn_digests(Manifest& manifest, const VersionName& name) const;
  Status note_stored(Draft&& draft, const VersionName& name, const ShardedVersion& version);
  Result<const VersionRecord*> record_of(const Version& version) FRESHET_REQUIRES(mutex_);
  Result<Bytes> tensor_of(const VersionRecord& record, std::uint32_t tensor) FRESHET_REQUIRES(mutex_);

  const std::shared_ptr<Repository> repository_;
  const std::string model_;
  const bool is_paced_;

  // put()'s.
  bool learned_ = false;  ///< newest_ is the repository's. False after a put that failed.
  std::optional<Newest> newest_;
  struct Room {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };
  /// What a put() held its tensors in, for the next one: new memory is cleared by the kernel, page by page, which takes
  /// longer than to read a tensor into it. By index in the architecture.
  std::map<std::uint32_t, Room> rooms_;

  mutable Mutex mutex_;
  std::optional<VersionRecord> record_ FRESHET_GUARDED_BY(mutex_);
  std::optional<ShareCut> cut_ FRESHET_GUARDED_BY(mutex_);  ///< Of that version, as one rank's.
  std::map<std::uint32_t, std::vector<std::byte>> cache_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t cached_bytes_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet::levels
