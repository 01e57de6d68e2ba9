// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When to act in a running training loop. The loop calls observe() after every iteration with its loss; the answer is
/// immediate and almost always no. When it is yes, the loop publishes and tells what that took:
///
///     auto scheduler = Scheduler::make({.limits = {.serving = 20min, .requests_per_second = 40}});
///     …
///     if ((*scheduler)->observe({.step = step, .loss = loss})) {
///       const auto receipt = publisher->publish(tensors, {.step = step});
///       if (receipt) (*scheduler)->published(receipt->blocked);
///     }
///
/// bindings/runtime/scheduled_publisher.h does these lines, and measures deliveries, in one call. policy.h lists the
/// schedules; the default, `online`, weighs what each version would gain against what its stall would cost, and
/// last_decision() says how.
///
/// Files: online/ is the policy `online` without times of its own, online.h the same on the replay clock (schedule.h),
/// scheduler_machine.h everything here but clock and lock.

#include <memory>

#include "core/clock.h"
#include "core/mutex.h"
#include "core/result.h"
#include "scheduler/scheduler_machine.h"

namespace freshet {

/// Any thread. No call waits for anything but the others' lock; between decisions a call takes less than a microsecond.
class Scheduler {
 public:
  /// `clock` must outlive it. invalid_argument names the option.
  static Result<std::unique_ptr<Scheduler>> make(const SchedulerOptions& options, const Clock& clock = system_clock());

  /// An iteration ended. `observation.at` is filled in here. True: publish now; a publish that does not happen stays
  /// due. Losses that are not finite, and missing ones (NaN), are iterations without news.
  bool observe(const Observation& observation) FRESHET_EXCLUDES(mutex_);

  /// The version of the last observation, or before any the initial one, was published; the loop stood for `stall`.
  void published(Duration stall) FRESHET_EXCLUDES(mutex_);
  /// A server serves a version so long after its publish returned.
  void delivered(Duration after) FRESHET_EXCLUDES(mutex_);
  /// The repository has a version so long after its publish returned.
  void persisted(Duration after) FRESHET_EXCLUDES(mutex_);

  SchedulerDecision last_decision() const FRESHET_EXCLUDES(mutex_);

 private:
  Scheduler(ScheduleMachine machine, const Clock& clock) : clock_(clock), machine_(std::move(machine)) {}

  const Clock& clock_;
  mutable Mutex mutex_;
  ScheduleMachine machine_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
