// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checkpoints of a job of N ranks, for one copy of each rank's share: the loop goes on as soon as that is made, and
/// the version is brought behind it from level to level. (DeepFreeze, CCGrid'20, section IV: capture tensor by tensor
/// as their updates are done, an N-th of what all have alike, asynchronous levels.)
///
///     auto checkpointer = Checkpointer::open({.model = "net", .rank = r, .ranks = n, .meet = "tcp://10.0.0.7:7400",
///                                             .local = {"/scratch/net"}}, tensors);
///     auto restored = (*checkpointer)->restore(memory);        // collective; nothing: begin anew
///     for (step = …) {
///       (*checkpointer)->begin(step);
///       for (layer = last … first) { update(layer); (*checkpointer)->capture(layer, bytes); }
///       (*checkpointer)->end();                                // the next step may begin
///     }
///     (*checkpointer)->finish(std::chrono::minutes(5));        // collective
///
/// A version is made of whole tensors and has one number at all ranks; who holds which bytes is below it
/// (core/layout/layout.h), so another number of ranks restores it. Levels, each acknowledged by name for the whole
/// version, in this order:
///
///     memory    captured by all ranks         survives: nothing that ends a process
///     local     synced in each rank's folder  survives: every process, and hosts that come back with their disks
///     group     each shard copied to a rank of another host: one host of each group of up to 8 ranks may be lost
///     external  in the repository             survives: what the repository does
///
/// What does not change between two versions is stored once, at each level.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/env.h"
#include "core/layout/layout.h"
#include "core/result.h"
#include "repo/levels/level_board.h"
#include "repo/levels/restart_plan.h"
#include "repo/levels/ring.h"
#include "repo/repository.h"
#include "transport/security.h"

namespace freshet {

using CheckpointLevel = levels::Level;

/// What happened to a version, or to a peer.
struct CheckpointEvent {
  enum class Kind : std::uint8_t { reached, failed, lost };
  Kind kind = Kind::reached;
  VersionNumber version = 0;
  std::uint64_t step = 0;
  CheckpointLevel level = CheckpointLevel::memory;
  Duration after{};                  ///< Since this rank ended its capture.
  std::optional<Error> error;        ///< Of failed and lost.
  std::vector<std::uint32_t> peers;  ///< Of lost.
};

/// begin(), capture(), end(), checkpoint(), restore() and finish(): one thread at a time. The rest: any thread.
/// A process that is forked off has none of it.
class Checkpointer {
 public:
  struct Options {
    std::string model;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 1;
    std::string meet;                ///< "tcp://HOST:PORT": rank 0 listens there. Not needed for one rank.
    std::string host;                ///< The failure domain; empty: this machine's name.
    std::vector<std::string> local;  ///< The first is written, all are read. Ranks may share one.
    levels::GroupScheme group;       ///< Whether there is a level `group`, and what ranks keep of each other's there.
    /// Opens the repository at rank 0; none: there is no level `external`. Given at all ranks, or at none.
    std::function<Result<std::shared_ptr<Repository>>()> external;
    levels::WhenBehind when_behind = levels::WhenBehind::skip;
    std::map<CheckpointLevel, std::uint32_t> keep;  ///< Versions; else 1 in memory, 2 local and group, all external.
    std::uint64_t limit_bytes_per_second = 0;       ///< Of what a rank sends to group and external; 0: no limit.
    Duration patience = std::chrono::seconds(30);   ///< For peers to come, and for collective calls.
    Duration lost_after{};                          ///< A peer that is silent for so long is lost; 0: 0.85 seconds.
    /// What else has to be alike at all ranks, as names and values: who differs is told at open(), by name.
    std::vector<std::pair<std::string, std::string>> alike;
    SecurityOptions security;
    /// On a thread of the checkpointer's; must not call it.
    std::function<void(const CheckpointEvent&)> on_event;
    /// For tests: called where a process may die. "captured", "local_half", "local_synced", …
    std::function<void(std::string_view point, std::uint64_t step)> at_point;
    Env* env = nullptr;  ///< Null: the machine's.
  };

  /// Returns when all ranks have met. Errors: invalid_argument (options; tensors; ranks that were started unlike each
  /// other); already_exists (the folder is another process's, or the rank is there twice); timed_out naming who did not
  /// come; those of the folder and the repository.
  static Result<std::unique_ptr<Checkpointer>> open(Options options, std::vector<LaidTensor> tensors);
  ~Checkpointer();

  struct Restored {
    VersionName version;
    std::uint64_t step = 0;
    std::set<CheckpointLevel> from;   ///< Where this rank's bytes came from.
    std::uint64_t rebuilt_bytes = 0;  ///< From copies of ranks whose own shards were not there.
    std::vector<std::string> fresh;   ///< Tensors that the version does not have for this rank; they are as they were.
    std::vector<std::string> notes;   ///< What was passed over, and why.
  };
  /// Collective, once, before the first begin(). Fills `held`: for each tensor, in the order of open(), what this rank
  /// holds of it (held_piece(); empty where that is nothing). Nothing: there is no version, the job begins anew.
  /// corrupt when something was acknowledged and nothing can be completed: the message says what is missing.
  /// failed_precondition when the version's tensors have other shapes or types.
  Result<std::optional<Restored>> restore(std::span<const MutableBytes> held, levels::RestartChoice choice = {});

  struct Captured {
    VersionNumber version = 0;
    Duration blocked{};
    std::uint64_t bytes = 0;  ///< Of what this rank stores: that has changed.
  };
  /// Collective: all ranks checkpoint the same steps. The version's number. out_of_space when all levels are so far
  /// behind that no memory is free (with `skip`): the step has no checkpoint then, and the next may; timed_out (with
  /// `wait`); unavailable when a peer is lost.
  Result<VersionNumber> begin(std::uint64_t step);
  /// The values of one tensor: what this rank holds of it. When it returns, they may change.
  Status capture(std::size_t tensor, Bytes held);
  /// failed_precondition when a tensor is missing; the version has failed then.
  Result<Captured> end();
  Result<Captured> checkpoint(std::uint64_t step, std::span<const Bytes> held);

  /// True: reached; false: not yet. Its error when it failed; not_found when no such version was begun here.
  Result<bool> poll(VersionNumber version, CheckpointLevel level) const;
  /// timed_out; the version's error.
  Status wait(VersionNumber version, CheckpointLevel level, Duration at_most) const;
  /// The levels that this job has, ascending.
  const std::vector<CheckpointLevel>& levels() const;

  /// Waits until every version has ended at every level. timed_out.
  Status settle(Duration at_most) const;
  /// Collective, the last call: settles, then lets the ranks go.
  Status finish(Duration at_most);

 private:
  class Impl;
  explicit Checkpointer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
