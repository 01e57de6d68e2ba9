// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Ends a thread's waits early. StopWakes ends one wait at once when a stop token asks for it. StopInterrupts ends all
/// waits of a thread's calls, also of calls of repositories, within 50 ms after a stop token asked for it. Interruption
/// is for Python: Ctrl-C shall end a call that waits for a peer. Only the waiting thread can ask Python whether Ctrl-C
/// was pressed, and it can ask only now and then.

#include <algorithm>
#include <functional>
#include <optional>
#include <stop_token>
#include <utility>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet {

/// In force in the thread that makes it, during its lifetime. A nested Interruption replaces the outer one meanwhile. A
/// wait for a repository's server, for ranks or for an activation asks `wanted` about twenty times a second, and holds
/// no lock. If the answer is true, the wait ends with `cancelled`. `wanted` should then stay true. put, read and gc of
/// a repository in this process ask between two tensors. gc holds the lock of the writers' turn while it asks. So
/// `wanted` must not write to the repository.
class Interruption {
 public:
  explicit Interruption(std::function<bool()> wanted) : wanted_(std::move(wanted)), outer_(in_force()) {
    in_force() = this;
  }
  /// Wanted when the stop was requested, or when the outer Interruption is wanted.
  explicit Interruption(const std::stop_token& stop)
      : Interruption(
            [stop, outer = in_force()] { return stop.stop_requested() || (outer != nullptr && outer->wanted_()); }) {}
  /// Wanted from that time on, or when the outer Interruption is wanted.
  explicit Interruption(Time end)
      : Interruption([end, outer = in_force()] {
          return system_clock().now() >= end || (outer != nullptr && outer->wanted_());
        }) {}
  ~Interruption() { in_force() = outer_; }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // For the code that waits.

  /// True: some Interruption is in force in this thread, so that its waits must ask now and then.
  static bool is_possible() { return in_force() != nullptr; }
  /// The time of this thread's next question, no later than `deadline`.
  static Time next_look(Time deadline) {
    return in_force() == nullptr ? deadline : std::min(deadline, system_clock().now() + kLook);
  }
  /// True: this thread's wait must end now. False if no Interruption is in force.
  static bool is_wanted() { return in_force() != nullptr && in_force()->wanted_(); }
  /// For long work, between two pieces: cancelled if this thread's call must end now.
  static Status check() {
    if (!is_wanted()) return {};
    return fail(Code::cancelled, "the caller interrupted the call");
  }

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(50);

  static Interruption*& in_force() {
    thread_local Interruption* innermost = nullptr;
    return innermost;
  }

  const std::function<bool()> wanted_;
  Interruption* const outer_;
};

/// An Interruption by a stop token, and by the Interruption that is in force already:
///
///     const StopInterrupts stops(stop);
///     repository.read(record, reads);   // cancelled, at the latest 50 ms after the request for the stop
///
/// Without effect if nobody can ask for the stop.
class StopInterrupts {
 public:
  explicit StopInterrupts(const std::stop_token& stop) {
    if (stop.stop_possible()) interruption_.emplace(stop);
  }

 private:
  std::optional<Interruption> interruption_;
};

/// A stop token's request wakes the threads that wait on a condition variable: no wait has to look at the token now and
/// then.
///
///     const StopWakes wakes(stop, mutex_, changed_);   // Before the lock, so that it ends after the lock.
///     MutexLock lock(mutex_);
///     while (!has_come_) {
///       if (stop.stop_requested()) return fail(Code::cancelled, "…");
///       if (!changed_.wait_until(mutex_, deadline)) …
///     }
///
/// In force as long as it lives. REQUIRES: the thread that makes or ends it does not hold the mutex.
class StopWakes {
 public:
  StopWakes(const std::stop_token& stop, Mutex& mutex, CondVar& changed) : callback_(stop, Notify{&mutex, &changed}) {}

 private:
  struct Notify {
    Mutex* mutex;
    CondVar* changed;
    void operator()() const {
      // A waiter that has looked at the token holds the mutex until it sleeps, so it does not miss this.
      { const MutexLock lock(*mutex); }
      changed->notify_all();
    }
  };
  const std::stop_callback<Notify> callback_;
};

}  // namespace freshet
