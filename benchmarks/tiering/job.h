// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every case of this benchmark has: sets in a slow folder, tiers, and trainers that read the sets.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/common/child.h"
#include "benchmarks/tiering/training_set.h"
#include "core/base/result.h"
#include "tests/support/slow_folder/slow_folder.h"

namespace freshet::benchmarks {

/// A program of this build beside the running one: "freshet".
std::string built_program(const std::string& name);

/// Runs a command to its end; its standard output, line by line. An error when its exit code is not 0.
Result<std::vector<std::string>> lines_of(const std::vector<std::string>& command);

struct Epoch {
  double seconds = 0;
  double waited_s = 0;  ///< Of all readers together.
};

struct TrainerOptions {
  std::string folder;  ///< That has the set's files.
  std::string list;
  std::size_t piece_bytes = 0;
  unsigned readers = 1;
  bool each_reads_all = false;
  std::int64_t work_us = 0;
  bool in_python = false;
  bool tells_order = false;
  std::vector<std::string> before;  ///< Words before the trainer's: `freshet tier run …`, `env …`.
  std::uint64_t bytes = 0;          ///< What an epoch must give, of all readers.
  std::uint64_t sum = 0;
};

/// A trainer that is running. Ends with the object.
class Trainer {
 public:
  static Result<std::unique_ptr<Trainer>> start(TrainerOptions options);
  /// Fails when it did not read what the set has.
  Result<Epoch> epoch(unsigned number);
  /// Begins an epoch, kills the trainer and waits for its end.
  Status kill_within(unsigned number, double seconds);

 private:
  explicit Trainer(TrainerOptions options) : options_(std::move(options)) {}
  /// The rest of its next line with this beginning. Other lines are skipped: a loaded library may print some.
  Result<std::string> next_line(const std::string& begin);

  const TrainerOptions options_;
  std::unique_ptr<Child> child_;
  pid_t pid_ = 0;
};

/// A config with one tier of its own, and its keeper. Stops that and removes the tier at its end.
class Tiers {
 public:
  /// `more` is added to the config's head.
  static Result<std::unique_ptr<Tiers>> make(const std::string& folder, const std::string& source,
                                             std::uint64_t quota_bytes, const std::string& more);
  ~Tiers();

  const std::string& config() const { return config_; }
  const std::string& tier() const { return tier_; }
  /// Words before a trainer's.
  std::vector<std::string> run_words() const;
  /// `freshet tier VERB`.
  Status command(const std::string& verb) const;
  /// The `total` line.
  Result<nlohmann::json> total() const;
  Result<std::uint64_t> used_bytes() const;
  /// By SIGKILL.
  Status kill_keeper() const;

 private:
  std::string config_;
  std::string tier_;
};

}  // namespace freshet::benchmarks
