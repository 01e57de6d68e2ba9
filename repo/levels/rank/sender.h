// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `external`, at rank 0: puts a version into the repository. Where each rank can open the repository, it
/// brings its own bytes, and rank 0 only begins the put by parts, says what is wanted, and commits. Where that fails,
/// because a rank has no rights or a shard is damaged, rank 0 collects all bytes and puts them.

#include <cstdint>
#include <optional>
#include <set>
#include <span>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/levels/rank/bringer.h"
#include "repo/levels/restart/group_source.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/level_thread.h"
#include "repo/part_puts.h"

namespace freshet::levels {

/// take_brought() and end(): any thread.
class Sender final : public LevelWork {
 public:
  Sender(const Job& job, Bringer& bringer)
      : job_(job), bringer_(bringer), pace_(job.options.limit_bytes_per_second), by_parts_(job.ranks_bring()) {}

  Status reach(const Due& due) override;
  /// A rank has brought its part, or says why not.
  void take_brought(group::Rank from, const LevelNote& note) FRESHET_EXCLUDES(mutex_);
  void end() FRESHET_EXCLUDES(mutex_);

 private:
  Status send(const Due& due) FRESHET_EXCLUDES(mutex_);
  /// Has every rank bring its part, this one included.
  Status bring_from_all(const Due& due, const PutToken& token, std::span<const std::uint32_t> tensors)
      FRESHET_EXCLUDES(mutex_);

  const Job& job_;
  Bringer& bringer_;
  Pace pace_;
  bool by_parts_;
  /// What is waited for.
  struct Bringing {
    VersionNumber version = 0;
    std::set<group::Rank> waits_for;
    std::optional<Error> error;  ///< Of the first rank that failed.
  };
  Mutex mutex_;
  CondVar changed_;
  std::optional<Bringing> bringing_ FRESHET_GUARDED_BY(mutex_);
  bool ended_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet::levels
