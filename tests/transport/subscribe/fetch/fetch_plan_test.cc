// SPDX-License-Identifier: Apache-2.0
/// What is fetched, and from which base: decided from owner maps alone.

#include "transport/subscribe/fetch/fetch_plan.h"

#include <gtest/gtest.h>

namespace freshet::detail {
namespace {

class FetchPlanTest : public ::testing::Test {
 protected:
  static std::shared_ptr<Manifest> manifest(const std::vector<std::uint64_t>& sizes, std::uint64_t sequence) {
    std::vector<TensorSpec> specs;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      specs.push_back({.name = "t" + std::to_string(t), .dtype = DType::u8, .shape = {sizes[t]}});
    }
    auto made = std::make_shared<Manifest>();
    made->name = {.model = "demo", .number = sequence};
    made->id = {.incarnation = 1, .sequence = sequence};
    made->architecture = *Architecture::guess_chain(std::move(specs));
    made->owners = OwnerMap::all_written_by(made->id, sizes.size());
    for (std::size_t t = 0; t < sizes.size(); ++t) made->digests.push_back({.low = sequence, .high = t});
    return made;
  }
  static std::function<bool(const Content&)> nothing() {
    return [](const Content&) { return false; };
  }
  static std::vector<std::uint32_t> tensors(const FetchPlan& plan) {
    std::vector<std::uint32_t> tensors;
    for (const PlannedFetch& fetch : plan.fetch) tensors.push_back(fetch.tensor);
    return tensors;
  }
};

TEST_F(FetchPlanTest, EverythingIsFetchedAtFirst) {
  const FetchPlan plan = plan_fetch(*manifest({5000, 0, 7000}, 1), nullptr, nothing(), {});
  EXPECT_EQ(tensors(plan), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(plan.empty, std::vector<std::uint32_t>{1});
  EXPECT_FALSE(plan.fetch[0].base);
  EXPECT_EQ(plan.batches, std::vector<std::size_t>{2});
}

TEST_F(FetchPlanTest, AServerTakesWeightsAndBuffers) {
  std::vector<TensorSpec> specs;
  for (const Role role : {Role::weight, Role::optimizer, Role::buffer, Role::opaque}) {
    specs.push_back({.name = std::string(name_of(role)), .dtype = DType::u8, .shape = {5000}, .role = role});
  }
  const auto wanted = manifest({5000, 5000, 5000, 5000}, 1);
  wanted->architecture = *Architecture::guess_chain(std::move(specs));
  EXPECT_EQ(tensors(plan_fetch(*wanted, nullptr, nothing(), {})), (std::vector<std::uint32_t>{0, 1, 2, 3}));
  const FetchPlan served = plan_fetch(*wanted, nullptr, nothing(), {.whole = false});
  EXPECT_EQ(tensors(served), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(served.left, (std::vector<std::uint32_t>{1, 3}));
}

TEST_F(FetchPlanTest, WhatIsHereIsNotFetched) {
  const auto wanted = manifest({5000, 6000, 7000}, 2);
  const auto has = [&](const Content& content) { return content == content_of(*wanted, 1); };
  const FetchPlan plan = plan_fetch(*wanted, nullptr, has, {});
  EXPECT_EQ(plan.present, std::vector<std::uint32_t>{1});
  EXPECT_EQ(tensors(plan), (std::vector<std::uint32_t>{0, 2}));
}

TEST_F(FetchPlanTest, DeltasStartFromWhatIsServed) {
  const auto served = manifest({5000, 6000, 100}, 1);
  const auto wanted = manifest({5000, 6000, 100}, 2);
  wanted->owners = served->owners.with_written(wanted->id, std::vector<std::uint32_t>{1, 2});
  const FetchPlan plan = plan_fetch(*wanted, served.get(), nothing(), {});
  ASSERT_EQ(tensors(plan), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_FALSE(plan.fetch[0].base) << "the segment itself is wanted, and is not here: there is no base for it";
  EXPECT_EQ(plan.fetch[1].base, served->owners[1]);
  EXPECT_FALSE(plan.fetch[2].base) << "too small for a delta to pay";
}

TEST_F(FetchPlanTest, AnotherArchitectureHasNoBases) {
  const auto served = manifest({5000, 6000}, 1);
  const FetchPlan plan = plan_fetch(*manifest({5000, 6000, 7000}, 2), served.get(), nothing(), {});
  for (const PlannedFetch& fetch : plan.fetch) EXPECT_FALSE(fetch.base);
}

TEST_F(FetchPlanTest, BatchesKeepToTheirLimits) {
  const auto wanted = manifest({10, 10, 10, 10, 10, 1000, 10}, 1);
  EXPECT_EQ(plan_fetch(*wanted, nullptr, nothing(), {.batch_bytes = 100, .batch_pieces = 3}).batches,
            (std::vector<std::size_t>{3, 2, 1, 1}));
  EXPECT_EQ(plan_fetch(*wanted, nullptr, nothing(), {.batch_bytes = 0, .batch_pieces = 3}).batches,
            std::vector<std::size_t>(7, 1));
  EXPECT_EQ(plan_fetch(*wanted, nullptr, nothing(), {.batch_bytes = 10'000, .batch_pieces = 100}).batches,
            std::vector<std::size_t>{7});
}

TEST_F(FetchPlanTest, AShadowIsCaughtUpAtTheLeastCost) {
  const Content base = content_of(*manifest({5000}, 2), 0);
  const Content before = content_of(*manifest({5000}, 1), 0);
  const KeptDeltas::Delta forth{.base = before, .target = base};
  const KeptDeltas::Delta back{.base = base, .target = before};
  EXPECT_EQ(catch_up(&base, base, nullptr), CatchUp::none);
  EXPECT_EQ(catch_up(&before, base, &forth), CatchUp::apply);
  EXPECT_EQ(catch_up(&before, base, &back), CatchUp::revert);
  EXPECT_EQ(catch_up(&before, base, nullptr), CatchUp::copy);
  EXPECT_EQ(catch_up(nullptr, base, &forth), CatchUp::copy);
  Content lie = before;
  lie.digest.low ^= 1;
  EXPECT_EQ(catch_up(&lie, base, &forth), CatchUp::copy) << "the same name, other bytes";
}

TEST_F(FetchPlanTest, KeptDeltasKeepToTheirRoom) {
  KeptDeltas kept(100);
  kept.keep(0, {.payload = std::vector<std::byte>(40)});
  kept.keep(1, {.payload = std::vector<std::byte>(40)});
  kept.keep(0, {.payload = std::vector<std::byte>(50)});
  EXPECT_EQ(kept.bytes(), 90u);
  kept.keep(2, {.payload = std::vector<std::byte>(20)});
  EXPECT_EQ(kept.find(1), nullptr) << "the oldest goes first";
  EXPECT_NE(kept.find(0), nullptr);
  kept.keep(3, {.payload = std::vector<std::byte>(101)});
  EXPECT_EQ(kept.find(3), nullptr);
  EXPECT_EQ(kept.bytes(), 70u);
  kept.drop(0);
  EXPECT_EQ(kept.bytes(), 20u);
}

}  // namespace
}  // namespace freshet::detail
