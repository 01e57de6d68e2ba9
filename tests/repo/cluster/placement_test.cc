// SPDX-License-Identifier: Apache-2.0
#include "repo/records/placement.h"

#include <gtest/gtest.h>

#include "tests/repo/world.h"

namespace freshet {
namespace {

Placement placement_of(int providers) {
  std::vector<Provider> list;
  for (int i = 0; i < providers; ++i)
    list.push_back({.id = "p" + std::to_string(i), .address = "tcp://h" + std::to_string(i)});
  auto placement = Placement::first(list);
  FRESHET_CHECK(placement.has_value());
  return *placement;
}

TEST(Placement, SpreadsVersionsEvenly) {
  const Placement placement = placement_of(4);
  std::vector<int> counts(4);
  for (std::uint64_t i = 1; i <= 20000; ++i) ++counts[placement.home(test_id(i))];
  // Binomial with mean 5000 and deviation 61: six deviations either way.
  for (const int count : counts) EXPECT_NEAR(count, 5000, 370);
}

TEST(Placement, AnotherProviderTakesItsShareAndNothingElseMoves) {
  Placement placement = placement_of(3);
  const Placement before = placement;
  auto next = placement.with({.id = "a-new-one", .address = "tcp://new"});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number(), 2u);
  const std::size_t added = next->index_of("a-new-one");
  int moved = 0;
  for (std::uint64_t i = 1; i <= 8000; ++i) {
    const std::string& was = before.providers()[before.home(test_id(i))].id;
    const std::size_t now = next->home(test_id(i));
    if (next->providers()[now].id != was) {
      EXPECT_EQ(now, added);
      ++moved;
    }
    EXPECT_EQ(next->providers()[next->home(test_id(i), 1)].id, was) << "the old placement is still known";
    const std::vector<std::size_t> homes = next->homes(test_id(i));
    EXPECT_EQ(homes.front(), now);
    EXPECT_EQ(next->providers()[homes.back()].id, was);
    EXPECT_EQ(homes.size(), next->providers()[now].id == was ? 1u : 2u);
  }
  EXPECT_NEAR(moved, 2000, 240);
}

TEST(Placement, AnotherAddressMovesNothing) {
  const Placement placement = placement_of(3);
  const auto next = placement.with({.id = "p1", .address = "tcp://elsewhere"});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->number(), 2u);
  EXPECT_EQ(next->providers()[1].address, "tcp://elsewhere");
  for (std::uint64_t i = 1; i <= 500; ++i) {
    EXPECT_EQ(next->home(test_id(i)), placement.home(test_id(i)));
    EXPECT_EQ(next->homes(test_id(i)).size(), 1u);
  }
  EXPECT_EQ(next->with({.id = "p1", .address = "tcp://elsewhere"}).error().code(), Code::already_exists);
}

// Homes are on disks: these must never change.
TEST(Placement, DrawsAreTheSameOnEveryMachine) {
  const Placement placement = placement_of(4);
  std::string homes, registrars;
  for (std::uint64_t i = 1; i <= 16; ++i) {
    homes += std::to_string(placement.home(test_id(i)));
    registrars += std::to_string(placement.registrar("model" + std::to_string(i)));
  }
  EXPECT_EQ(homes, "2321023322320220");
  EXPECT_EQ(registrars, "0213203032332302");
}

TEST(Placement, RefusesWhatCannotBe) {
  EXPECT_EQ(Placement::first({}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Placement::first({{.id = "a"}, {.id = "a"}}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Placement::first({{.id = "a b"}}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Placement::first({{.id = ""}}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Placement::first({{.id = std::string(65, 'a')}}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Placement::first({{.id = "a", .address = std::string(2000, 'a')}}).error().code(), Code::invalid_argument);
  std::vector<Provider> many;
  for (int i = 0; i < 257; ++i) many.push_back({.id = "p" + std::to_string(i)});
  EXPECT_EQ(Placement::first(many).error().code(), Code::invalid_argument);
}

TEST(Placement, IsReadBackAndEveryDamageIsNoticedOrHarmless) {
  const Placement placement = placement_of(3).with({.id = "late", .address = "tcp://late"}).value();
  const std::string bytes = placement.encode();
  ASSERT_EQ(Placement::decode(bytes).value(), placement);
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    const auto damaged = Placement::decode(bytes.substr(0, cut));
    EXPECT_TRUE(!damaged || !damaged->providers().empty());
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto damaged = Placement::decode(flipped);
    if (!damaged) continue;
    for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_LT(damaged->home(test_id(i)), damaged->providers().size());
  }
}

}  // namespace
}  // namespace freshet
