// SPDX-License-Identifier: Apache-2.0
// The closed form of the cumulative loss against a world that is played event by event.

#include <gtest/gtest.h>

#include <random>

#include "predictor/cumulative_loss.h"
#include "tests/predictor/event_simulator.h"
#include "tests/predictor/random_case.h"

namespace freshet {
namespace {

constexpr std::uint64_t kSimulatorSeed = 20240812;

test::Scene scene_of(const test::RandomCase& setting) {
  return {.step = setting.timing.step_ns,
          .stall = setting.timing.stall_ns,
          .delivery = setting.timing.delivery_ns,
          .between_requests = setting.timing.infer_ns,
          .warmup = static_cast<int>(setting.horizon.warmup),
          .rows = static_cast<int>(setting.horizon.rows),
          .requests = static_cast<int>(setting.horizon.requests)};
}

TEST(Simulator, AgreesWithTheClosedFormOnEveryRequest) {
  std::mt19937_64 random(kSimulatorSeed);
  for (int round = 0; round < 20'000; ++round) {
    const test::RandomCase setting = test::random_case(random, 25);
    std::bernoulli_distribution chosen(std::uniform_real_distribution<>(0, 1)(random));
    PublishRows rows;
    for (std::int64_t row = setting.horizon.warmup + 1; row <= setting.horizon.rows; ++row) {
      if (chosen(random)) rows.push_back(row);
    }
    const std::vector<std::int64_t> answered = test::play(scene_of(setting), std::set<int>(rows.begin(), rows.end()));
    double played = 0;
    for (std::size_t i = 0; i < setting.costs.size(); ++i) {
      played += static_cast<double>(answered[i + static_cast<std::size_t>(setting.horizon.warmup)]) * setting.costs[i];
    }
    ASSERT_EQ(*cumulative_loss(setting.clock(), setting.costs, rows), played)
        << "seed " << kSimulatorSeed << " round " << round << ": " << setting.text();
  }
}

}  // namespace
}  // namespace freshet
