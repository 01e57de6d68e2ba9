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

TEST(Workers, TakeTurnsBetweenOwners) {
  std::latch begun(1);
  std::latch may_end(1);
  std::latch ended(6);
  std::string ran;  // The worker's.
  Workers workers;
  ASSERT_TRUE(workers.start(1));
  const auto post = [&](char name, const std::string& owner) {
    workers.post(
        [&, name] {
          ran += name;
          ended.count_down();
        },
        0, owner);
  };
  workers.post(
      [&] {
        begun.count_down();
        may_end.wait();
      },
      0, "many");
  begun.wait();
  for (const char name : {'1', '2', '3', '4'}) post(name, "many");
  post('a', "few");
  post('b', "few");
  may_end.count_down();
  ended.wait();
  EXPECT_EQ(ran, "a1b234");
}

TEST(Workers, KeepAThreadForOthers) {
  std::latch begun(1);
  std::latch may_end(1);
  std::latch served(1);
  std::latch ended(1);
  Workers workers;
  ASSERT_TRUE(workers.start(2, 1));
  workers.post(
      [&] {
        begun.count_down();
        may_end.wait();
      },
      0, "many");
  begun.wait();
  bool early = true;  // Set before the others' job is posted, and read after it.
  workers.post([&] { ended.count_down(); }, 0, "many");
  workers.post(
      [&] {
        early = ended.try_wait();
        served.count_down();
      },
      0, "few");
  served.wait();
  EXPECT_FALSE(early) << "one owner has both threads";
  may_end.count_down();
  ended.wait();
}

}  // namespace
}  // namespace freshet::rpc
