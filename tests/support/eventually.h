// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Waiting for what happens on other threads.

#include <chrono>
#include <functional>
#include <thread>

namespace freshet {

/// False when it did not come true in a minute.
inline bool came_true(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace freshet
