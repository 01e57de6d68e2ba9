// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The ways to run a search that nas compares: where a candidate's first layers come from, and where models are kept.

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "examples/nas_evolution/candidate.h"
#include "examples/nas_evolution/trainer.h"

namespace freshet::benchmarks {

/// One thread. Candidates are counted from 0.
class Arm {
 public:
  virtual ~Arm() = default;

  /// Before its training: transfers what there is to transfer, and freezes it. The epochs that it inherits.
  virtual Result<double> begin(std::uint64_t id, nas::Candidate& candidate) = 0;
  /// After it: keeps the model.
  virtual Status finish(std::uint64_t id, const nas::Candidate& candidate,
                        const nas::SimulatedTrainer::Outcome& outcome) = 0;
  /// The candidate dropped out of the population.
  virtual Status retire(std::uint64_t id) = 0;
  /// After the search: what is kept, in bytes on the disk.
  virtual Result<std::uint64_t> bytes() = 0;
};

/// Every candidate from scratch; nothing is kept.
std::unique_ptr<Arm> make_no_transfer();

/// A Freshet repository in `folder`.
Result<std::unique_ptr<Arm>> make_freshet(const std::string& folder, bool retire);

/// An HDF5 file for each model in `folder`, and Redis-Queries for what is known of them (EvoStore, section 5.2).
/// unsupported without HDF5 or hiredis; unavailable without a redis-server.
Result<std::unique_ptr<Arm>> make_files(const std::string& folder, bool retire);

}  // namespace freshet::benchmarks
