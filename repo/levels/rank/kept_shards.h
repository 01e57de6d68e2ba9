// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The shards that stay in this rank's folder: retention of the levels `local` and `group`. A shard goes when no kept
/// version needs its bytes; of one whose bytes some need, only these stay.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/version_book.h"

namespace freshet::levels {

/// Any thread; clean() one at a time.
class KeptShards {
 public:
  KeptShards(const Job& job, const VersionBook& book) : job_(job), book_(book) {}

  /// The version reached `level`, local or group: the newest of each stay. REQUIRES: called before the version's last
  /// level is marked in the book.
  void keep(Level level, VersionNumber number) FRESHET_EXCLUDES(mutex_);
  /// A version of an earlier life stays at this level.
  void keep_earlier(Level level, const Version& version) FRESHET_EXCLUDES(mutex_);
  /// The newest shard here: the next one inherits from it.
  void set_newest(const Version& version) FRESHET_EXCLUDES(mutex_);
  /// Other ranks' payloads that stay meanwhile: the copy or parity under way needs them, or the next one inherits from
  /// them.
  void need(std::span<const Version> versions) FRESHET_EXCLUDES(folder_mutex_);
  /// The same, instead of all that were needed before.
  void need_only(const std::optional<Version>& version) FRESHET_EXCLUDES(folder_mutex_);

  /// Removes what does not stay. `only_this_life`: shards of earlier lives stay.
  void clean(std::uint64_t step, bool only_this_life) FRESHET_EXCLUDES(mutex_, folder_mutex_);

 private:
  struct Kept {
    std::set<Version> own;     ///< At `local`.
    std::set<Version> copies;  ///< At `group`.
  };
  using Needed = std::map<std::pair<ShardKey, ShardKind>, std::vector<ByteRange>>;
  bool is_to_clean(const HeldShard& shard) const;
  Kept kept_now() const FRESHET_EXCLUDES(mutex_);
  /// False: it cannot be told what this shard needs.
  bool add_needs(const HeldShard& shard, Needed& needed) const;

  const Job& job_;
  const VersionBook& book_;
  Mutex folder_mutex_;  ///< Before mutex_.
  std::set<Version> needed_ FRESHET_GUARDED_BY(folder_mutex_);
  mutable Mutex mutex_;
  Kept kept_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Version> newest_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::levels
