// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The options of a scheduler, the observations that a training loop gives it, and its decisions with their reasons.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "core/base/clock.h"

namespace freshet {

/// One iteration of the training loop, as it ended.
struct Observation {
  std::uint64_t step = 0;  ///< Grows by one from iteration to iteration. A step that jumps back starts a new count.
  double loss = 0;         ///< NaN: no loss.
  /// The loss of an evaluation of this iteration's version on data that the training does not see; NaN: none was made.
  /// A model that overfits has ever better training losses, so evaluations decide once there are eight, and `loss`
  /// counts no more. `online` then publishes only versions that were evaluated; if no evaluation comes for four usual
  /// intervals, `loss` decides until the next one. A plan is made once: from evaluations if the warm-up had eight.
  double eval_loss = std::numeric_limits<double>::quiet_NaN();
  bool epoch_end = false;
  Time at{};
};

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
  /// "online" (compares each version's gain with its stall's cost), "every:N" (N steps), "epoch", "failures:MTBF" and
  /// "failures:MTBF:RESTART" (seconds), or a schedule that is planned once, after the warm-up: "fixed", "greedy",
  /// "optimal".
  std::string schedule = "online";
  std::uint64_t epoch_steps = 0;     ///< For "epoch", if the loop does not set Observation::epoch_end: the steps of an
                                     ///< epoch. 0: only epoch_end counts.
  std::uint64_t warmup_steps = 100;  ///< For the schedules that are planned once; and for "online", if no initial
                                     ///< version was published: then the first publish comes after these steps.
  SchedulerLimits limits;
  /// Assumed times of a stall and a delivery until they are measured.
  Duration stall_expected{};
  Duration delivery_expected{};
};

/// The figures of the last weighed decision. Empty and zero for a policy that predicts nothing.
struct Explanation {
  std::uint64_t step = 0;    ///< The step of the decision; 0: none yet.
  std::string curve;         ///< The fitted curve with its parameters, for people.
  double served_loss = 0;    ///< The estimated loss of the served version.
  double present_loss = 0;   ///< The estimated loss of the newest version, without the noise of its batch.
  double gain = 0;           ///< Expected gain of a publish now over never publishing again: loss x requests.
  double stall_cost = 0;     ///< Expected cost of the stall for later versions: loss x requests.
  double next_in_steps = 0;  ///< Estimated distance of the best next publish; 0: now, or not known.
  std::string note;          ///< The reason if the policy does not plan as asked; of "failures", its interval.
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
  Duration step_time{};   ///< This time and the next three are measured. Each is the median of its newest measurements.
  Duration stall_time{};  ///< t_p of the paper.
  Duration delivery_time{};  ///< t_c.
  Duration persist_time{};   ///< The sink's time for a version; the scheduler publishes no faster than that.
  double overhead_percent = 0;

  /// One line.
  std::string text() const;
};

}  // namespace freshet
