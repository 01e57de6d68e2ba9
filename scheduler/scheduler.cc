// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler.h"

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "scheduler/scheduler_machine.h"

namespace freshet {

class Scheduler::Impl {
 public:
  Impl(ScheduleMachine machine_made, const Clock& its_clock) : clock(its_clock), machine(std::move(machine_made)) {}

  ~Impl() {
    if (!worker.joinable()) return;
    // A child has none of its parent's threads, and the child's next thread may bear the name of one: join() and
    // detach() would be that thread's.
    if (mark.is_inherited()) {
      static_cast<void>(new std::thread(std::move(worker)));
    } else {
      worker.join();
    }
  }

  /// Runs it on another thread, without the lock; where none can be started, here.
  void begin(Policy::Work work) FRESHET_EXCLUDES(mutex);

  const ForkMark mark;
  const Clock& clock;
  mutable Mutex mutex;
  ScheduleMachine machine FRESHET_GUARDED_BY(mutex);
  /// A policy has one such work in its life, so it is set once, by the call that took the work.
  std::thread worker;
};

void Scheduler::Impl::begin(Policy::Work work) {
  // The work has all the losses, which a copy of it would have too.
  const auto shared = std::make_shared<const Policy::Work>(std::move(work));
  const auto carry_out = [this](const Policy::Work& one) {
    const std::function<void()> hand_over = one();
    const MutexLock lock(mutex);
    hand_over();
  };
  try {
    worker = std::thread([carry_out, shared] { carry_out(*shared); });
  } catch (const std::system_error&) {
    carry_out(*shared);
  }
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() = default;

Result<std::unique_ptr<Scheduler>> Scheduler::make(const SchedulerOptions& options, const Clock& clock) {
  FRESHET_ASSIGN(auto machine, ScheduleMachine::make(options));
  return std::unique_ptr<Scheduler>(new Scheduler(std::make_unique<Impl>(std::move(machine), clock)));
}

bool Scheduler::observe(const Observation& observation) {
  Observation timed = observation;
  timed.at = impl_->clock.now();
  bool due = false;
  Policy::Work work;
  {
    const MutexLock lock(impl_->mutex);
    due = impl_->machine.observe(timed);
    work = impl_->machine.take_work();
  }
  if (work) impl_->begin(std::move(work));
  return due;
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
