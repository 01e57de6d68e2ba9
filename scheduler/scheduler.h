// SPDX-License-Identifier: Apache-2.0
#pragma once

/// When to publish in a running training loop. The loop calls observe() after every iteration with its loss. The answer
/// comes at once and is almost always no. If the answer is yes, the loop publishes and reports the stall:
///
///     auto scheduler = Scheduler::make({.limits = {.serving = 20min, .requests_per_second = 40}});
///     …
///     if ((*scheduler)->observe({.step = step, .loss = loss})) {
///       const auto receipt = publisher->publish(tensors, {.step = step});
///       if (receipt) (*scheduler)->published(receipt->blocked);
///     }
///
/// bindings/runtime/scheduled_publisher.h does these lines in one call, and measures deliveries. scheduler_options.h
/// has the options, with the list of schedules. The default, `online`, compares each version's gain with the cost of
/// its stall; last_decision() has the figures.
///
/// The parts: policy.h has the schedules, and online/ has the policy `online`. Neither measures times: the scheduler
/// gives them. schedule.h runs the same policy on the replay clock. scheduler_machine.h has the scheduler
/// without its clock and its lock.

#include <memory>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "scheduler/scheduler_options.h"

namespace freshet {

/// Any thread. A call waits only for the lock of other calls; between decisions it takes less than a microsecond. Plans
/// are made by a thread of the scheduler's own, without the lock. The destructor waits for a plan that is being made
/// (0.2 s if 100,000 steps are to come, and most of a second after a warm-up of 1,000,000 steps). In a forked child a
/// plan that was being made never comes.
class Scheduler {
 public:
  /// `clock` must outlive the scheduler. The message of invalid_argument names the option.
  static Result<std::unique_ptr<Scheduler>> make(const SchedulerOptions& options, const Clock& clock = system_clock());
  ~Scheduler();

  /// An iteration ended. `observation.at` is filled in here. True: publish now; a publish that does not happen stays
  /// due. If the loss is not finite, or missing (NaN), the scheduler counts the iteration and ignores the loss.
  bool observe(const Observation& observation);

  /// Reports a publish of the last observation's version (before any observation: of the initial version), which
  /// stopped the loop for `stall`.
  void published(Duration stall);
  /// Reports the delay from the return of publish() until a server serves the version.
  void delivered(Duration after);
  /// Reports the delay from the return of publish() until the repository has the version.
  void persisted(Duration after);

  SchedulerDecision last_decision() const;

 private:
  class Impl;
  explicit Scheduler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
