// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Random small settings for comparing with oracles: times that often coincide, costs with ties, rises and signs.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "core/base/format.h"
#include "predictor/timing.h"

namespace freshet::test {

struct RandomCase {
  Timing timing;
  Horizon horizon;
  std::vector<double> costs;  ///< Of rows N to L; whole numbers, so that every sum is exact.

  ReplayClock clock() const { return *ReplayClock::make(timing, horizon); }
  std::string text() const {
    std::string line = format("A {} B {} C {} D {} N {} L {} M {} costs", timing.step_ns, timing.stall_ns,
                              timing.delivery_ns, timing.infer_ns, horizon.warmup, horizon.rows, horizon.requests);
    for (const double cost : costs) line += format(" {}", cost);
    return line;
  }
};

inline RandomCase random_case(std::mt19937_64& random, int steps_max) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  RandomCase made;
  const std::int64_t scale = between(0, 3) == 0 ? 1 : between(1, 30);
  made.timing.step_ns = scale * between(1, 12);
  made.timing.stall_ns = between(0, 4) == 0 ? 0 : between(0, 2) == 0 ? between(0, 3) : scale * between(0, 20);
  made.timing.delivery_ns = between(0, 6) == 0 ? 100'000 : scale * between(0, 30);
  made.timing.infer_ns = between(0, 3) == 0 ? scale * between(20, 60) : scale * between(1, 12);
  made.horizon.warmup = between(1, 5);
  made.horizon.rows = made.horizon.warmup + between(1, steps_max);
  made.horizon.requests = between(1, between(0, 1) == 0 ? 12 : 80);
  double cost = static_cast<double>(between(-20, 60));
  const std::int64_t kind = between(0, 3);
  for (std::int64_t row = made.horizon.warmup; row <= made.horizon.rows; ++row) {
    made.costs.push_back(cost);
    if (kind == 0) cost = static_cast<double>(between(-9, 9));
    if (kind == 1) cost -= static_cast<double>(between(0, 9));
    if (kind == 2) cost -= static_cast<double>(between(-2, 4));
    if (kind == 3) cost = static_cast<double>(static_cast<std::int64_t>(cost * 3 / 4));
  }
  return made;
}

}  // namespace freshet::test
