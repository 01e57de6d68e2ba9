// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

namespace freshet {

Result<std::unique_ptr<Scheduler>> Scheduler::make(const SchedulerOptions& options, const Clock& clock) {
  FRESHET_ASSIGN(auto machine, ScheduleMachine::make(options));
  return std::unique_ptr<Scheduler>(new Scheduler(std::move(machine), clock));
}

bool Scheduler::observe(const Observation& observation) {
  Observation timed = observation;
  timed.at = clock_.now();
  const MutexLock lock(mutex_);
  return machine_.observe(timed);
}

void Scheduler::published(Duration stall) {
  const Time now = clock_.now();
  const MutexLock lock(mutex_);
  machine_.published(now, stall);
}

void Scheduler::delivered(Duration after) {
  const MutexLock lock(mutex_);
  machine_.delivered(after);
}

void Scheduler::persisted(Duration after) {
  const MutexLock lock(mutex_);
  machine_.persisted(after);
}

SchedulerDecision Scheduler::last_decision() const {
  const MutexLock lock(mutex_);
  return machine_.last_decision();
}

}  // namespace freshet
