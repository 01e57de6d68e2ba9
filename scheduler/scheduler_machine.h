// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The scheduler without clock and lock. It takes events with their times, and answers whether a publish is due. It
/// measures the times that its policy weighs, keeps the limits that people set, and explains its decisions.
///
/// One thread at a time; scheduler.h is the shell for everybody else.

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "scheduler/policy.h"
#include "scheduler/running_median.h"
#include "scheduler/scheduler_options.h"

namespace freshet {

class ScheduleMachine {
 public:
  /// invalid_argument names the option.
  static Result<ScheduleMachine> make(const SchedulerOptions& options);

  /// True: publish now. It stays due until published() is called.
  bool observe(const Observation& observation);

  /// The work that the last observation asked for and no iteration should wait for (policy.h); to be taken after each.
  Policy::Work take_work() { return policy_->take_work(); }

  /// Reports a publish of the last observation's version, which stopped the loop for `stall`. Also for the initial
  /// version, before any observation: its stall is no measurement, because it touches memory for the first time.
  void published(Time at, Duration stall);
  /// Reports the delay from the return of publish() until a server serves the version.
  void delivered(Duration after) { delivery_.add(seconds(after)); }
  /// Reports the delay from the return of publish() until the repository has the version.
  void persisted(Duration after) { persist_.add(seconds(after)); }

  SchedulerDecision last_decision() const;

 private:
  ScheduleMachine(const SchedulerOptions& options, std::unique_ptr<Policy> policy)
      : options_(options), policy_(std::move(policy)) {}

  static double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
  void measure_step(Time at);
  Situation situation(const Observation& observation) const;
  double serving_left(const Observation& observation) const;
  std::string_view objection() const;
  bool answer(bool publish, std::string_view reason);

  SchedulerOptions options_;
  std::unique_ptr<Policy> policy_;

  RunningMedian step_;
  RunningMedian stall_;
  RunningMedian delivery_;
  RunningMedian persist_;

  std::optional<Observation> last_;
  std::optional<Time> serving_since_;
  std::uint64_t observations_ = 0;
  std::uint64_t publishes_ = 0;
  std::uint64_t published_step_ = 0;
  std::uint64_t published_observation_ = 0;
  double trained_ = 0;             ///< Seconds between observations, stalls not counted.
  double stalled_ = 0;             ///< Seconds.
  double stalled_since_last_ = 0;  ///< Since the last observation.
  bool answer_ = false;
  std::string_view reason_ = "nothing was observed yet";
};

}  // namespace freshet
