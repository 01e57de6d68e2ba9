// SPDX-License-Identifier: Apache-2.0
#include "core/base/clock.h"

namespace freshet {
namespace {

class SystemClock final : public Clock {
 public:
  Time now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  std::int64_t unix_ns() const override {
    return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
};

}  // namespace

const Clock& system_clock() {
  static const SystemClock clock;
  return clock;
}

}  // namespace freshet
