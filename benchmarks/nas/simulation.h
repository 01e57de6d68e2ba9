// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A search in simulated time: workers train side by side on a clock of events, trainings take as long as the simulated
/// trainer says, and what the arm does with models is done and takes as long as it really took. It is done one at a
/// time, so that no worker's measurement has another's in it.

#include <cstdint>
#include <vector>

#include "benchmarks/common/statistics.h"
#include "benchmarks/nas/arms.h"
#include "core/base/result.h"
#include "examples/nas_spaces/spaces.h"

namespace freshet::benchmarks {

struct SimulationOptions {
  std::uint64_t candidates = 1000;
  std::uint64_t workers = 16;
  nas::AgingEvolution::Options evolution;
  nas::TrainerOptions trainer;
};

struct SimulatedTask {
  std::uint64_t id = 0;
  std::uint64_t worker = 0;
  double start_s = 0;
  double finish_s = 0;
  double quality = 0;
};

struct SimulationResult {
  std::vector<SimulatedTask> tasks;  ///< In the order in which they finished.
  Samples transfer_ms;               ///< Of each candidate: until it can train.
  Samples keep_ms;                   ///< Until its model is kept.
  double repository_s = 0;           ///< All of that, and retiring.
  double evaluation_s = 0;           ///< Trainings and all of that.
  std::uint64_t model_bytes = 0;     ///< Of all candidates.

  double end_s() const { return tasks.empty() ? 0 : tasks.back().finish_s; }
  /// When the first candidate of that quality was there; NaN when none was.
  double time_to(double quality) const;
  /// Of the last `count` candidates.
  double mean_quality(std::size_t count) const;
};

Result<SimulationResult> simulate(Arm& arm, const nas::Space& space, const SimulationOptions& options);

}  // namespace freshet::benchmarks
