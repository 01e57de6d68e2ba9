// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/workers.h"

#include <gtest/gtest.h>

#include <latch>
#include <vector>

namespace freshet::rpc {
namespace {

TEST(Workers, TakeAwayOnlyWhatWasNotBegun) {
  std::latch begun(1);
  std::latch may_end(1);
  std::latch ended(1);
  std::vector<int> ran;  // The worker's.
  Workers workers;
  ASSERT_TRUE(workers.start(1));
  workers.post(
      [&] {
        begun.count_down();
        may_end.wait();
        ran.push_back(1);
      },
      1);
  begun.wait();
  workers.post([&] { ran.push_back(2); }, 2);
  workers.post([&] { ran.push_back(3); }, 3);
  workers.post([&] { ended.count_down(); });
  EXPECT_TRUE(workers.drop(2));
  EXPECT_FALSE(workers.drop(2));
  EXPECT_FALSE(workers.drop(1)) << "it was begun";
  EXPECT_FALSE(workers.drop(0)) << "that is nobody's";
  may_end.count_down();
  ended.wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 3}));
}

}  // namespace
}  // namespace freshet::rpc
