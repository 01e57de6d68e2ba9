// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Letting go of the interpreter's lock, and waiting without it.

#include <Python.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/base/interruption.h"
#include "core/base/result.h"

namespace freshet::python {

/// Takes the interpreter's lock back. In an interpreter that is ending, Python would end this thread by unwinding its
/// stack, which no C++ frame survives that may not throw; such a thread then stands still until the process ends.
void take_gil_back(PyThreadState* state);

/// While it lives, this thread has let go of the interpreter's lock. REQUIRES: the lock, when it is made.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { take_gil_back(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  /// Takes the lock for as long as Python's signal handlers run. True when one raised, or the call's progress did
  /// before: the exception is this thread's error.
  bool run_signal_handlers();

 private:
  PyThreadState* state_;
};

/// A share in something that another thread may close meanwhile: whoever has the last share ends it, which may take a
/// while, and does not keep the interpreter's lock for that.
template <typename T>
class Share {
 public:
  explicit Share(std::shared_ptr<T> shared) : shared_(std::move(shared)) {}
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  ~Share() { drop(shared_); }
  T* operator->() const { return shared_.get(); }
  T& operator*() const { return *shared_; }

  /// REQUIRES: no other thread can reach `shared`: the interpreter's lock is released while it still holds the object.
  static void drop(std::shared_ptr<T>& shared) {
    if (shared.use_count() != 1) return shared.reset();
    const Unlocked unlocked;
    shared.reset();
  }

 private:
  std::shared_ptr<T> shared_;
};

/// How long a call of C++ goes on before it looks for Ctrl-C.
inline constexpr Duration kLookSlice = std::chrono::milliseconds(20);

/// The answer of `call`, called without the interpreter's lock. Waits and long work of C++ that know of Interruption
/// end with Ctrl-C, and what the signal handler raised is thrown in the place of the answer.
template <typename Call>
auto call_unlocked(Call call) -> decltype(call()) {
  bool raised = false;
  auto result = [&] {
    Unlocked unlocked;
    Time next_look = system_clock().now() + kLookSlice;
    const Interruption interruption([&] {
      const Time now = system_clock().now();
      if (raised || now < next_look) return raised;  // Work asks for each tensor; the lock is dear.
      next_look = now + kLookSlice;
      return raised = unlocked.run_signal_handlers();
    });
    return call();
  }();
  if (raised || PyErr_Occurred() != nullptr) {
    {
      const Unlocked unlocked;  // The call may have opened an object. Closing the object may wait.
      [[maybe_unused]] const auto dropped = std::move(result);
    }
    throw nanobind::python_error();
  }
  return result;
}

/// How long a wait lasts before it looks for Ctrl-C.
inline constexpr Duration kWaitSlice = std::chrono::milliseconds(50);
inline constexpr double kTimeoutSecondsMax = 1e9;

/// invalid_argument for not-a-number; negative is now, and none or more than thirty years is for ever.
std::optional<Time> deadline_of(std::optional<double> timeout_seconds);

/// `step` waits for so long at most and answers timed_out when nothing came. It is called without the interpreter's
/// lock until it answers otherwise or the deadline is there. Python's signal handlers run in between, and what they
/// raise ends the wait.
template <typename Step>
auto wait_in_slices(std::optional<double> timeout_seconds, Step step) -> decltype(step(Duration{})) {
  const std::optional<Time> deadline = deadline_of(timeout_seconds);
  for (;;) {
    const Time now = system_clock().now();
    const Duration left = deadline ? std::max(*deadline - now, Duration::zero()) : Duration::max();
    auto result = [&] {
      const Unlocked unlocked;
      return step(std::min(left, kWaitSlice));
    }();
    if (result || result.error().code() != Code::timed_out) return result;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    if (left <= kWaitSlice) return result;
  }
}

}  // namespace freshet::python
