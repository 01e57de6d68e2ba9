// SPDX-License-Identifier: Apache-2.0
/// Tensors that a loop binds once, and captures layer by layer.

#include <optional>

#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

class BoundTensorsTest : public StreamTest {
 protected:
  BoundTensorsTest()
      : publisher_(open_publisher(publisher_options())), subscriber_(open_subscriber(subscriber_options())) {}
  BoundTensors bind() {
    const auto views = model_.views();
    return publisher_->bind({views.begin(), views.end()});
  }
  std::vector<std::optional<std::uint64_t>> served(VersionNumber version) {
    const Status came = subscriber_->wait_for(version, kPatience);
    EXPECT_TRUE(came) << came.error().message();
    const Snapshot snapshot = subscriber_->snapshot();
    std::vector<std::optional<std::uint64_t>> stamps;
    for (std::uint32_t tensor = 0; tensor < 4; ++tensor) stamps.push_back(stamp_of(snapshot, tensor));
    return stamps;
  }

  StampedModel model_{4, 1000};
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
};

using Stamps = std::vector<std::optional<std::uint64_t>>;

TEST_F(BoundTensorsTest, AreServedAsTheyWereCaptured) {
  BoundTensors bound = bind();
  model_.stamp_all(1);
  ASSERT_TRUE(bound.publish({.step = 1}));
  EXPECT_EQ(served(1), (Stamps{1, 1, 1, 1}));

  ASSERT_TRUE(bound.begin());
  model_.stamp_all(2);
  for (const std::uint32_t layer : {3U, 2U, 1U}) ASSERT_TRUE(bound.capture({{layer}}));
  for (const std::uint32_t layer : {3U, 2U}) model_.stamp(layer, 3);  // The next step has begun.
  const auto receipt = bound.end({.step = 2});
  ASSERT_TRUE(receipt) << receipt.error().message();
  EXPECT_EQ(receipt->version, 2U);
  EXPECT_EQ(receipt->captured_tensors, 4U);
  EXPECT_GT(receipt->blocked, Duration::zero());
  EXPECT_EQ(served(2), (Stamps{2, 2, 2, 2}));
}

TEST_F(BoundTensorsTest, LieInHostMemory) {
  const auto views = model_.views();
  BoundTensors host = publisher_->bind({views.begin(), views.end()}, {.memory = MemoryKind::host});
  EXPECT_TRUE(host.publish({}));
  BoundTensors elsewhere = publisher_->bind({views.begin(), views.end()}, {.memory = static_cast<MemoryKind>(7)});
  EXPECT_EQ(elsewhere.publish({}).error().code(), Code::unsupported);
  EXPECT_EQ(elsewhere.begin().error().code(), Code::unsupported);
}

TEST_F(BoundTensorsTest, TheFirstVersionMayBeCapturedLayerByLayer) {
  BoundTensors bound = bind();
  model_.stamp_all(5);
  ASSERT_TRUE(bound.begin());
  ASSERT_TRUE(bound.capture({{0}}));
  model_.stamp(0, 6);
  ASSERT_TRUE(bound.end({.sync = true}));
  EXPECT_EQ(served(1), (Stamps{5, 5, 5, 5}));
}

TEST_F(BoundTensorsTest, WhatWasGivenUpComesWithTheNextVersion) {
  BoundTensors bound = bind();
  model_.stamp_all(1);
  ASSERT_TRUE(bound.publish({}));
  ASSERT_TRUE(bound.begin());
  model_.stamp(2, 2);
  ASSERT_TRUE(bound.capture({{2}}));
  bound.abandon();
  bound.abandon();
  const auto next = bound.publish({.changed = Changed::only({})});
  ASSERT_TRUE(next) << next.error().message();
  EXPECT_EQ(next->captured_tensors, 1U);
  EXPECT_EQ(served(2), (Stamps{1, 1, 2, 1}));
}

TEST_F(BoundTensorsTest, WrongOrderIsSaidAndChangesNothing) {
  BoundTensors bound = bind();
  model_.stamp_all(1);
  EXPECT_EQ(bound.capture({{0}}).error().code(), Code::failed_precondition);
  EXPECT_EQ(bound.end({}).error().code(), Code::failed_precondition);
  ASSERT_TRUE(bound.begin());
  EXPECT_EQ(bound.begin().error().code(), Code::failed_precondition);
  EXPECT_EQ(bound.capture({{4}}).error().code(), Code::invalid_argument);
  EXPECT_EQ(bound.publish({}).error().code(), Code::failed_precondition);
  EXPECT_EQ(publisher_->publish(model_.views(), {}).error().code(), Code::failed_precondition);
  ASSERT_TRUE(bound.end({}));
  EXPECT_EQ(served(1), (Stamps{1, 1, 1, 1}));
}

TEST_F(BoundTensorsTest, OfAnotherArchitectureAreRefused) {
  BoundTensors bound = bind();
  model_.stamp_all(1);
  ASSERT_TRUE(bound.publish({}));
  StampedModel other{3, 1000};
  const auto views = other.views();
  BoundTensors strange = publisher_->bind({views.begin(), views.end()});
  EXPECT_EQ(strange.begin().error().code(), Code::failed_precondition);
  EXPECT_EQ(strange.publish({}).error().code(), Code::failed_precondition);
  model_.stamp_all(2);
  ASSERT_TRUE(bound.publish({}));
  EXPECT_EQ(served(2), (Stamps{2, 2, 2, 2}));
}

}  // namespace
}  // namespace freshet
