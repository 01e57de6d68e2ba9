// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <utility>

#include "core/base/mutex.h"
#include "scheduler/scheduler_machine.h"

namespace freshet {

class Scheduler::Impl {
 public:
  Impl(ScheduleMachine machine_made, const Clock& its_clock) : clock(its_clock), machine(std::move(machine_made)) {}

  const Clock& clock;
  mutable Mutex mutex;
  ScheduleMachine machine FRESHET_GUARDED_BY(mutex);
};

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

Result<std::unique_ptr<Scheduler>> Scheduler::make(const SchedulerOptions& options, const Clock& clock) {
  FRESHET_ASSIGN(auto machine, ScheduleMachine::make(options));
  return std::unique_ptr<Scheduler>(new Scheduler(std::make_unique<Impl>(std::move(machine), clock)));
}

bool Scheduler::observe(const Observation& observation) {
  Observation timed = observation;
  timed.at = impl_->clock.now();
  const MutexLock lock(impl_->mutex);
  return impl_->machine.observe(timed);
}

void Scheduler::published(Duration stall) {
  const Time now = impl_->clock.now();
  const MutexLock lock(impl_->mutex);
  impl_->machine.published(now, stall);
}

void Scheduler::delivered(Duration after) {
  const MutexLock lock(impl_->mutex);
  impl_->machine.delivered(after);
}

void Scheduler::persisted(Duration after) {
  const MutexLock lock(impl_->mutex);
  impl_->machine.persisted(after);
}

SchedulerDecision Scheduler::last_decision() const {
  const MutexLock lock(impl_->mutex);
  return impl_->machine.last_decision();
}

}  // namespace freshet
