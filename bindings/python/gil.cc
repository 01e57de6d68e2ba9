// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/gil.h"

#include <cxxabi.h>
#include <unistd.h>

#include <cmath>

#include "bindings/python/errors.h"

namespace freshet::python {

void take_gil_back(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) ::pause();
  }
}

bool Unlocked::run_signal_handlers() {
  take_gil_back(state_);
  const bool raised = PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
  state_ = PyEval_SaveThread();
  return raised;
}

std::optional<Time> deadline_of(std::optional<double> timeout_seconds) {
  if (!timeout_seconds) return std::nullopt;
  if (std::isnan(*timeout_seconds)) raise(Code::invalid_argument, "the timeout is not a number");
  if (*timeout_seconds > kTimeoutSecondsMax) return std::nullopt;
  const std::chrono::duration<double> wait(std::max(*timeout_seconds, 0.0));
  return system_clock().now() + std::chrono::duration_cast<Duration>(wait);
}

}  // namespace freshet::python
