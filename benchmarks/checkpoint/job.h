// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A job of some ranks, each a thread with a folder and a failure domain of its own; on this host, or each in a host of
/// a lab.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/checkpoint/state.h"
#include "core/base/result.h"
#include "repo/levels/checkpointer.h"
#include "tests/support/net/lab/network.h"

namespace freshet::benchmarks {

/// On loopback, with a port that nobody has now.
std::string free_meeting_place();

struct JobOptions {
  std::uint32_t ranks = 4;
  std::string folder;       ///< The ranks' folders are made in it.
  std::uint64_t bytes = 0;  ///< That each rank holds.
  std::size_t tensors = 16;
  bool split = false;  ///< Each rank holds its rows; else all hold everything.
  levels::GroupScheme group;
  bool external = false;
  std::uint32_t keep = 1;  ///< Versions at `local` and `group`.
  std::uint64_t limit_bytes_per_second = 0;
  std::vector<const lab::Host*> hosts;  ///< One for each rank, or none.
  SecurityOptions security;             ///< Of every rank.
};

/// One thread at a time; each rank's life runs on a thread of its own.
class Job {
 public:
  using Life = std::function<Status(std::uint32_t rank, Checkpointer& checkpointer, State& state)>;

  explicit Job(JobOptions options);

  /// One life of the job; returns when all ranks have finished.
  Status run(const Life& life);
  /// restore() alone; how long it took at the slowest rank. not_found when there was nothing.
  Result<double> restore_ms();

  std::string local(std::uint32_t rank) const;
  std::string external() const { return options_.folder + "/runs"; }
  std::uint64_t bytes() const;  ///< Of the whole state.
  const JobOptions& options() const { return options_; }

 private:
  Status live(const std::string& meet, std::uint32_t rank, const Life& life);
  const JobOptions options_;
  std::vector<std::unique_ptr<State>> states_;
};

}  // namespace freshet::benchmarks
