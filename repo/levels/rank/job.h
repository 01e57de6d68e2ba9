// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The job as one rank sees it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/env.h"
#include "core/base/result.h"
#include "core/layout/layout.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/external_level.h"
#include "repo/levels/level_board.h"
#include "repo/levels/shards/shard_folders.h"
#include "repo/levels/shards/share.h"
#include "transport/group/group.h"

namespace freshet::levels {

/// One tensor of the program's list at this rank.
struct OwnTensor {
  std::uint32_t whole = 0;           ///< Index among the version's tensors.
  std::uint64_t bytes = 0;           ///< Of the part that this rank holds.
  std::optional<std::size_t> piece;  ///< The piece of this part that this rank stores.
  std::uint64_t offset = 0;          ///< Where the piece begins in this part.
};

/// Constant after Checkpointer::open(), except `life`. Any thread.
struct Job {
  Job(Checkpointer::Options options_given, std::vector<LaidTensor> tensors_given);

  const Checkpointer::Options options;
  const std::vector<LaidTensor> tensors;
  const std::string host;
  Env& env;
  std::vector<Level> levels;  ///< Ascending.
  std::vector<OwnTensor> own;
  std::unique_ptr<ShareCut> cut;
  std::unique_ptr<ShardFolders> folders;
  bool shares_folder = false;  ///< With other ranks.
  std::unique_ptr<group::Group> group;
  std::vector<std::vector<std::uint32_t>> groups;  ///< Where there is a level `group`.
  std::unique_ptr<ExternalLevel> external;         ///< Rank 0's.
  std::optional<Error> external_damage;            ///< At rank 0: why it has no `external`. The level fails then.
  Version life;  ///< Run and incarnation of this life's versions. The first restore() sets it, before any begin().

  Status check_options() const;
  /// Cuts the tensors: `levels`, `own` and `cut`.
  void cut_tensors();
  bool ranks_bring() const { return options.external && options.external_is_shared && options.ranks > 1; }
  /// How many versions a level keeps, if the options do not say: `otherwise`.
  std::uint32_t keeps(Level level, std::uint32_t otherwise) const;
  /// Versions are numbered in step with their sequence.
  Version version_of(VersionNumber number) const;
  /// What the group's ranks must have alike.
  group::Claims claims() const;

  void point(std::string_view name, std::uint64_t step) const;
  /// To rank 0.
  void say(LevelNote::Kind kind, const Version& version, std::uint64_t step, Level level,
           const std::optional<Error>& error) const;
  void warn(std::string_view text) const;
};

}  // namespace freshet::levels
