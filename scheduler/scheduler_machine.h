// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The scheduler without clock and lock. It takes events with their times, and answers whether a publish is due. It
/// measures the times that its policy weighs, keeps the limits that people set, and explains its decisions.
///
/// One thread at a time; scheduler.h is the shell for everybody else.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "scheduler/policy.h"
#include "scheduler/running_median.h"

namespace freshet {

/// Limits in users' terms. A limit that is not set has no effect.
struct SchedulerLimits {
  std::uint64_t inferences = 0;            ///< To be served from the first publish on; needs requests_per_second.
  std::optional<Duration> serving;         ///< The time during which requests come, from the first publish on.
  double requests_per_second = 0;          ///< 0: not known.
  std::uint64_t steps = 0;                 ///< Of the whole training; 0: no end in sight.
  double overhead_percent = 100;           ///< Most that stalls may add to the training time so far.
  std::uint64_t interval_steps_least = 0;  ///< Between two publishes.
  std::uint64_t interval_steps_most = 0;   ///< After this many, a publish is due whatever its gain; 0: never.
};

struct SchedulerOptions {
  std::string schedule = "online";   ///< As parse_policy() takes it.
  std::uint64_t epoch_steps = 0;     ///< For "epoch" where observe() is not told; 0: none.
  std::uint64_t warmup_steps = 100;  ///< For the schedules that are planned once.
  SchedulerLimits limits;
  /// Assumed times of a stall and a delivery until they are measured.
  Duration stall_expected{};
  Duration delivery_expected{};
};

/// The reasons of the last answer. `gain` and `stall_cost` are sums of loss over requests (Viper's cumulative inference
/// loss), and comparable with each other.
struct SchedulerDecision {
  std::uint64_t step = 0;   ///< Of the last observation.
  bool publish = false;     ///< The answer to it.
  std::string reason;       ///< Its reason; if nothing was weighed there, that of the last weighed decision.
  std::string schedule;     ///< The policy's name.
  Explanation explanation;  ///< The curve with its parameters, expected gain and cost.
  std::uint64_t last_publish_step = 0;
  std::uint64_t publishes = 0;
  Duration step_time{};      ///< Measured, all four: medians of the newest.
  Duration stall_time{};     ///< t_p of the paper.
  Duration delivery_time{};  ///< t_c.
  Duration persist_time{};   ///< The sink's time for a version; the scheduler publishes no faster than that.
  double overhead_percent = 0;

  /// One line.
  std::string text() const;
};

class ScheduleMachine {
 public:
  /// invalid_argument names the option.
  static Result<ScheduleMachine> make(const SchedulerOptions& options);

  /// True: publish now. It stays due until published() is called.
  bool observe(const Observation& observation);

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
