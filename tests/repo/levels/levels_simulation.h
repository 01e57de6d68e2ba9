// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Lives of a job, one after another, from one seed: ranks that meet, capture, write and are lost, over links that
/// delay and are cut, with disks that stay or go. The machines are the real ones (transport/group/group_machine.h,
/// repo/levels/level_board.h, repo/levels/restart/restart_plan.h).

#include <cstdint>
#include <string>

namespace freshet::sim {

enum class LevelsSabotage {
  none,
  done_before_sync,    ///< A rank says done, and its shard is durable later.
  one_rank_is_enough,  ///< Rank 0 answers for everybody.
  numbers_from_disk,   ///< What was promised and not used is forgotten.
  restore_incomplete,  ///< Shards of a version are offered that are not there.
  parity_made_up,      ///< Parity is offered that is not there.
  any_job_may_meet,    ///< A rank of another job claims what this job's ranks claim.
};

struct LevelsOutcome {
  std::string violation;  ///< Empty: all went as it must.
  std::uint64_t events = 0;
  std::uint64_t lives = 0;
  std::uint64_t captured = 0;
  std::uint64_t local = 0;  ///< Versions that reached it.
  std::uint64_t group = 0;
  std::uint64_t external = 0;
  std::uint64_t failed = 0;    ///< At some level.
  std::uint64_t restored = 0;  ///< Lives that went on from a version.
  std::uint64_t resized = 0;   ///< With another number of ranks.
  std::uint64_t rebuilt = 0;   ///< Shards that were computed from parity.
  std::uint64_t refused = 0;   ///< Lives that found something acknowledged, and nothing whole.
  std::uint64_t lost = 0;      ///< Ranks that others named as lost.
  std::uint64_t strangers = 0;  ///< Ranks of other jobs that came to the meeting.
};

LevelsOutcome simulate_levels(std::uint64_t seed, LevelsSabotage sabotage);

}  // namespace freshet::sim
