// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

inline constexpr auto kPatience = std::chrono::minutes(10);

inline double ms_of(Duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

/// Milliseconds since it was made.
class Watch {
 public:
  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began_).count();
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

template <typename Work>
Result<double> timed_ms(const Work& work) {
  const Watch watch;
  FRESHET_TRY(work());
  return watch.ms();
}

}  // namespace freshet::benchmarks
