// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "scheduler/policy.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

std::vector<std::uint64_t> publishes(Policy& policy, std::uint64_t steps, std::uint64_t epoch_steps) {
  std::vector<std::uint64_t> fired;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const Observation observation{.step = step, .loss = std::nan(""), .epoch_end = step % epoch_steps == 0};
    if (!policy.decide(observation, {}).publish) continue;
    fired.push_back(step);
    policy.published(observation);
  }
  return fired;
}

TEST(Policy, EveryCountsStepsSinceTheLastPublish) {
  auto policy = parse_policy("every:3");
  ASSERT_TRUE(policy);
  EXPECT_EQ(publishes(**policy, 10, 100), (std::vector<std::uint64_t>{3, 6, 9}));
}

TEST(Policy, EveryAsksAgainUntilAPublishSucceeds) {
  auto policy = parse_policy("every:3");
  ASSERT_TRUE(policy);
  EXPECT_FALSE((*policy)->decide({.step = 2}, {}).publish);
  EXPECT_TRUE((*policy)->decide({.step = 3}, {}).publish);
  EXPECT_TRUE((*policy)->decide({.step = 4}, {}).publish) << "a skipped publish is due again at the next step";
  (*policy)->published({.step = 4});
  EXPECT_FALSE((*policy)->decide({.step = 6}, {}).publish);
  EXPECT_TRUE((*policy)->decide({.step = 7}, {}).publish);
}

TEST(Policy, EpochFiresAtEpochEndsOnly) {
  auto policy = parse_policy("epoch");
  ASSERT_TRUE(policy);
  EXPECT_EQ(publishes(**policy, 10, 4), (std::vector<std::uint64_t>{4, 8}));
}

TEST(Policy, TextIsParsedBack) {
  for (const char* text : {"every:1", "every:250", "epoch", "online", "fixed", "greedy", "optimal"}) {
    auto policy = parse_policy(text);
    ASSERT_TRUE(policy) << text;
    EXPECT_EQ((*policy)->text(), text);
  }
}

TEST(Policy, BadTextIsRefusedByName) {
  for (const char* text :
       {"", "every", "every:", "every:0", "every:-1", "every:3x", "every:99999999999999999999", "Epoch"}) {
    EXPECT_TRUE(is_refused(parse_policy(text), Code::invalid_argument, text)) << text;
  }
}

}  // namespace
}  // namespace freshet
