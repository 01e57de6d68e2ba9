// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of a Checkpointer. The caller's thread captures (Capture), with a CopyThread where it says so. The group's
/// loop keeps rank 0's board (LevelBoard) and hands on what is said. Up to four threads carry it out:
///
///   local     LocalLevel: writes shards to this rank's folder
///   group     GroupLevel: copies another rank's shards to this rank's folder, or makes parity there; at low priority
///   external  Sender, at rank 0: puts versions into the repository; at low priority
///             Bringer, at another rank, where each can open the repository: brings its part of them; at low priority
///   Teller    records promises, calls on_event, removes what is not kept (KeptShards)
///
/// VersionBook is what all of them share: the levels of each version, the memory, and the end of the job.

#include <optional>
#include <span>
#include <vector>

#include "repo/levels/checkpointer.h"
#include "repo/levels/level_board.h"
#include "repo/levels/rank/answers.h"
#include "repo/levels/rank/bringer.h"
#include "repo/levels/rank/capture.h"
#include "repo/levels/rank/group_level.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/kept_shards.h"
#include "repo/levels/rank/level_thread.h"
#include "repo/levels/rank/local_level.h"
#include "repo/levels/rank/restore.h"
#include "repo/levels/rank/sender.h"
#include "repo/levels/rank/teller.h"
#include "repo/levels/rank/version_book.h"
#include "repo/levels/repository_opening.h"

namespace freshet {

class Checkpointer::Impl {
 public:
  Impl(Options options, std::vector<LaidTensor> tensors) : job_(std::move(options), std::move(tensors)) {}
  ~Impl();
  Status open();

  Result<std::optional<Restored>> restore(std::span<const MutableBytes> held, const levels::RestartChoice& choice);
  Result<VersionNumber> begin(std::uint64_t step);
  Status finish(Duration at_most, const std::stop_token& stop);
  Status settle(Duration at_most, const std::stop_token& stop) const;
  Status check_stored() const;

  levels::Capture& capture() { return capture_; }
  const levels::VersionBook& book() const { return book_; }
  const levels::Job& job() const { return job_; }

 private:
  Status open_folders();
  Status meet(levels::RepositoryOpening* repository);
  Status start();
  /// The first restore() decided: from here on, versions have numbers.
  Status begin_life(const levels::Restore::Decided& decided, const levels::RestartChoice& choice);
  void end_threads();

  // On the group's loop.
  void on_note(group::Rank from, Bytes bytes);
  void begin_level(const levels::LevelNote& note);
  void on_end(const std::vector<group::Rank>& lost, const Error& why);

  levels::Job job_;
  levels::VersionBook book_{job_};
  levels::KeptShards kept_{job_, book_};
  levels::Teller teller_{job_, book_, kept_};
  levels::Capture capture_{job_, book_, teller_};
  levels::LocalLevel local_{job_, book_, kept_};
  std::optional<levels::GroupLevel> group_;  ///< Where there is a level `group`.
  levels::Bringer bringer_{job_};
  levels::Sender sender_{job_, bringer_};
  levels::Answers answers_{job_, book_, bringer_};
  levels::LevelThread writer_{job_, levels::Level::local, false};
  levels::LevelThread copier_{job_, levels::Level::group, true};
  levels::LevelThread sending_{job_, levels::Level::external, true};
  std::optional<levels::LevelBoard> board_;  ///< Rank 0's.
  bool restored_ = false;
  bool finished_ = false;
};

}  // namespace freshet
