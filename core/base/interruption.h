// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Ends waits before their time, for a thread that waits on somebody's behalf: Python's Ctrl-C is to end a call that
/// waits for a peer, and Python can be asked for it only now and then, by the thread that waits.

#include <algorithm>
#include <functional>
#include <utility>

#include "core/base/clock.h"

namespace freshet {

/// In force for the thread that makes it, as long as it lives; one inside of another takes its place meanwhile. Waits
/// that know of it (for a repository's server, for ranks, for an activation) ask `wanted` about twenty times a second,
/// without a lock of ours, and end with `cancelled` when it says so; it should say so from then on.
class Interruption {
 public:
  explicit Interruption(std::function<bool()> wanted) : wanted_(std::move(wanted)), outer_(in_force()) {
    in_force() = this;
  }
  ~Interruption() { in_force() = outer_; }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // For who waits.

  /// How long this thread may wait until it asks again, no later than `deadline`.
  static Time next_look(Time deadline) {
    return in_force() == nullptr ? deadline : std::min(deadline, system_clock().now() + kLook);
  }
  /// Whether this thread's wait is to end now. False where none is in force.
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
