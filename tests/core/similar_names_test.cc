// SPDX-License-Identifier: Apache-2.0
#include "core/words/similar_names.h"

#include <gtest/gtest.h>

#include <vector>

namespace freshet {
namespace {

TEST(SimilarNames, TheLikelyMeantOneComesFirst) {
  const std::vector<std::string> names = {"alpha", "beta", "digits", "digits-eval", "gamma", "resnet50", "zeta"};
  EXPECT_EQ(here_are("digts", names), "here are: digits, digits-eval, alpha, beta, gamma, …");
  EXPECT_TRUE(here_are("resent50", names).starts_with("here are: resnet50, "));
  EXPECT_TRUE(here_are("ResNet5O", names).starts_with("here are: resnet50, "));
  EXPECT_TRUE(here_are("digits-evaluation", names).starts_with("here are: digits-eval, digits, "));
  EXPECT_TRUE(here_are("nothing-like-these", names).starts_with("here are: alpha, beta, "));
  EXPECT_EQ(here_are("", std::vector<std::string>{"b", "a"}), "here are: b, a");
  EXPECT_EQ(here_are("x", {}), "");
}

}  // namespace
}  // namespace freshet
