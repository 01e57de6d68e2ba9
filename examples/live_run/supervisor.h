// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Starts the roles, keeps them running, shows how it goes, and ends them in order: first the load, then the training;
/// when the repository has the last version, the trainer and the servers, and then the repository.

#include <map>

#include "core/base/result.h"
#include "examples/live_run/children.h"
#include "examples/live_run/folders.h"
#include "examples/live_run/options.h"
#include "examples/live_run/report/progress.h"
#include "examples/live_run/report/tally.h"

namespace freshet::live {

/// Runs until the limits are reached or a signal comes; returns the exit code. Prints the closing table and, with
/// --json, the summary as the last line of stdout.
int supervise(RunOptions options);

/// One thread at a time.
class Supervisor {
 public:
  Supervisor(const RunOptions& options, std::string run_folder, Progress& progress);

  /// An error when the run cannot go on: a role that dies at once again and again, no version in time.
  Status run();

  const Tally& tally() const { return tally_; }
  std::uint64_t restarts() const { return restarts_; }
  /// From when the servers were ready until the load was told to end.
  double seconds() const;

 private:
  enum class Phase { starting, running, ending_load, draining, ending_serving, ending_repository, done };

  Status start_all();
  Status start(const ChildName& name);
  void on_line(const std::string& line, std::uint32_t start);
  void on_exit(const Children::Exit& exit);
  void restart_due_roles(Time now);
  void advance(Time now);
  void enter(Phase phase, Time now, Duration at_most);
  void end_run(Time now);
  bool limits_reached() const;
  bool drained() const;
  void signal_serving(int signal_number);  ///< To trainer, relay and servers.
  bool serving_alive() const;
  bool past_deadline(Time now) const { return now >= phase_deadline_; }

  const RunOptions& options_;
  Progress& progress_;
  Tally tally_;
  Children children_;
  const Time started_;
  Time ready_at_{};
  Time ended_at_{};
  Phase phase_ = Phase::starting;
  Time phase_deadline_{};
  Status failure_;

  struct Record {
    ChildName name;
    std::uint32_t lives = 0;
    std::uint32_t quick_deaths = 0;  ///< In a row.
    bool waiting = false;            ///< To be started again.
    Time start_at{};
  };
  std::map<std::string, Record> roles_;
  std::uint64_t restarts_ = 0;
};

}  // namespace freshet::live
