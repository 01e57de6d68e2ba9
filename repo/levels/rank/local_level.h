// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `local`: a rank's share as a shard in its folder. Pieces that an older shard there has are not written
/// again.

#include <optional>

#include "core/base/result.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/kept_shards.h"
#include "repo/levels/rank/level_thread.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/restart/restart_plan.h"

namespace freshet::levels {

/// Its thread keeps the program's priority, since the loop's memory is free again when the shard is written.
class LocalLevel final : public LevelWork {
 public:
  LocalLevel(const Job& job, VersionBook& book, KeptShards& kept) : job_(job), book_(book), kept_(kept) {}

  Status reach(const Due& due) override;
  /// This rank's shard of the version that `plan` restored has pieces that need not be written again, if the cut is the
  /// same and `baseline` has the same bytes. REQUIRES: before any reach().
  void inherit_from(const RestartPlan& plan, const Baseline& baseline);

 private:
  Status write(const Share& share);

  const Job& job_;
  VersionBook& book_;
  KeptShards& kept_;
  std::optional<ShardHeader> newest_;  ///< Of this rank's newest shard here.
};

}  // namespace freshet::levels
