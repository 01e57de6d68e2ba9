// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/version_shelf.h"

#include <gtest/gtest.h>

#include <utility>

namespace freshet::detail {
namespace {

std::unique_ptr<ServedVersion> numbered(VersionNumber number) {
  auto manifest = std::make_shared<Manifest>();
  manifest->name = {.model = "demo", .number = number};
  auto version = std::make_unique<ServedVersion>();
  version->manifest = std::move(manifest);
  return version;
}

class ShelfOfOnePin : public ::testing::Test {
 protected:
  Wake wake_{std::move(*Wake::open())};
  VersionShelf shelf_{1, wake_};
};

TEST_F(ShelfOfOnePin, NoPinIsFreeOrTheVersionIsNotThere) {
  EXPECT_FALSE(shelf_.serves());
  shelf_.serve(numbered(5), /*deliver=*/false);
  EXPECT_TRUE(shelf_.serves());
  const auto pin = shelf_.pin_of(5);
  ASSERT_TRUE(pin && pin->slot != nullptr);
  EXPECT_EQ(shelf_.pin_of(5).error().code(), Code::out_of_space);
  pin->slot->table->unpin(*pin->slot);
  // It is served no more, and the status does not say so yet: as in the middle of withdraw().
  shelf_.retire_all();
  ASSERT_EQ(shelf_.status(Time{}).serving, 5U);
  EXPECT_FALSE(shelf_.serves());
  const auto gone = shelf_.pin_of(5);
  ASSERT_TRUE(gone) << gone.error().message();
  EXPECT_EQ(gone->slot, nullptr);
}

TEST_F(ShelfOfOnePin, NoStatusNamesAnOlderVersionThanTheServedOneAsTheNewest) {
  shelf_.set_connection(/*connected=*/true, /*newest_known=*/1, 0, {}, Time{});
  shelf_.serve(numbered(2), /*deliver=*/false);
  EXPECT_EQ(shelf_.status(Time{}).newest_known, 2U);
  shelf_.set_connection(/*connected=*/true, /*newest_known=*/9, 0, {}, Time{});
  shelf_.serve(numbered(3), /*deliver=*/false);
  EXPECT_EQ(shelf_.status(Time{}).newest_known, 9U);
}

TEST_F(ShelfOfOnePin, AWithdrawnVersionIsStaleSinceThen) {
  const auto at = [](std::int64_t seconds) { return Time{} + std::chrono::seconds(seconds); };
  const auto news = [&](VersionNumber newest, std::int64_t seconds) {
    shelf_.set_connection(/*connected=*/true, newest, /*gaps=*/0, /*numbers_since=*/{}, at(seconds));
  };
  for (VersionNumber number = 1; number < 4; ++number) {
    news(number, static_cast<std::int64_t>(number) * 100);
    shelf_.serve(numbered(number), /*deliver=*/false);
  }
  shelf_.serve(numbered(4), /*deliver=*/false);
  EXPECT_EQ(shelf_.status(at(400)).newest_known, 4U) << "before the news says so";
  shelf_.serve(numbered(3), /*deliver=*/false);
  ASSERT_EQ(shelf_.status(at(999)).staleness, Duration(0));
  shelf_.withdraw(at(1000));
  news(3, 1001);
  EXPECT_EQ(shelf_.status(at(1002)).serving, 0U);
  EXPECT_EQ(shelf_.status(at(1002)).staleness, std::chrono::seconds(2));
  news(4, 1003);
  EXPECT_EQ(shelf_.status(at(1004)).staleness, std::chrono::seconds(4));
  shelf_.serve(numbered(3), /*deliver=*/false);
  EXPECT_EQ(shelf_.status(at(1004)).staleness, std::chrono::seconds(1));
  shelf_.withdraw(at(1010));
  EXPECT_EQ(shelf_.status(at(1010)).staleness, std::chrono::seconds(7)) << "it was stale before";
}

}  // namespace
}  // namespace freshet::detail
