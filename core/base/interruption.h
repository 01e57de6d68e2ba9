// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Ends a thread's waits early. For Python: Ctrl-C shall end a call that waits for a peer. Only the waiting thread can
/// ask Python whether Ctrl-C was pressed, and it can ask only now and then.

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/clock.h"

namespace freshet {

/// In force in the thread that makes it, during its lifetime. A nested Interruption replaces the outer one meanwhile. A
/// wait for a repository's server, for ranks or for an activation asks `wanted` about twenty times a second, without
/// holding a lock. If the answer is true, the wait ends with `cancelled`. `wanted` should then stay true.
class Interruption {
 public:
  explicit Interruption(std::function<bool()> wanted) : wanted_(std::move(wanted)), outer_(in_force()) {
    in_force() = this;
  }
  ~Interruption() { in_force() = outer_; }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // For the code that waits.

  /// The time of this thread's next question, no later than `deadline`.
  static Time next_look(Time deadline) {
    return in_force() == nullptr ? deadline : std::min(deadline, system_clock().now() + kLook);
  }
  /// True: this thread's wait must end now. False if no Interruption is in force.
  static bool is_wanted() { return in_force() != nullptr && in_force()->wanted_(); }

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(50);

  static Interruption*& in_force() {
    thread_local Interruption* innermost = nullptr;
    return innermost;
  }

  const std::function<bool()> wanted_;
  Interruption* const outer_;
};

}  // namespace freshet
