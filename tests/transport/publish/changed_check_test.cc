// SPDX-License-Identifier: Apache-2.0
/// PublisherOptions::check_changed: what a loop does not name is compared all the same.

#include <gtest/gtest.h>

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/publish/changed_check.h"

namespace freshet {
namespace {

using namespace freshet::test;

class CheckedChanges : public StreamTest {
 protected:
  std::unique_ptr<Publisher> open_checked() const {
    PublisherOptions options = publisher_options();
    options.check_changed = true;
    return open_publisher(std::move(options));
  }
  /// The fate of a version whose caller names these tensors.
  Result<CommitReport> fate_of(Publisher& publisher, std::vector<std::uint32_t> names) const {
    FRESHET_ASSIGN(const PublishReceipt receipt,
                   publisher.publish(model_.views(), {.changed = Changed::only(std::move(names))}));
    return publisher.wait_committed(receipt.version, kPatience);
  }
  StampedModel model_{8, 2048};
};

TEST_F(CheckedChanges, AVersionThatForgetsATensorIsRefusedAndTheNextTakesItAlong) {
  const auto publisher = open_checked();
  auto subscriber = open_subscriber(subscriber_options());
  model_.stamp_all(1);
  ASSERT_TRUE(fate_of(*publisher, {0})) << "the first version takes all tensors, whatever is named";
  model_.stamp(5, 2);
  model_.stamp(6, 2);
  EXPECT_TRUE(is_refused(
      fate_of(*publisher, {6}), Code::failed_precondition,
      "does not name 1 tensor with other bytes than in the last version: " + model_.views()[5].spec.name + ";"));
  EXPECT_EQ(publisher->stat().newest, 1U);
  model_.stamp(2, 3);
  const auto next = fate_of(*publisher, {2});
  ASSERT_TRUE(next) << next.error().message();
  EXPECT_EQ(next->changed_tensors, 3U);
  ASSERT_TRUE(subscriber->wait_for(next->version, kPatience));
  EXPECT_EQ(stamp_of(subscriber->snapshot(), 5), 2U);
  // Now it is forgotten anew.
  model_.stamp(5, 4);
  EXPECT_FALSE(fate_of(*publisher, {}));
}

TEST_F(CheckedChanges, AFirstVersionThatNamesNothingLetsNoLaterOneForget) {
  for (const Changed& first : {Changed::find(), Changed::all()}) {
    const auto publisher = open_checked();
    model_.stamp_all(1);
    const auto receipt = publisher->publish(model_.views(), {.changed = first});
    ASSERT_TRUE(receipt && publisher->wait_committed(receipt->version, kPatience));
    model_.stamp(5, 2);
    EXPECT_FALSE(fate_of(*publisher, {6}));
  }
}

TEST_F(CheckedChanges, WhatIsNamedPasses) {
  const auto publisher = open_checked();
  model_.stamp_all(1);
  ASSERT_TRUE(fate_of(*publisher, {}));
  for (std::uint64_t stamp = 2; stamp <= 20; ++stamp) {
    const auto tensor = static_cast<std::uint32_t>(stamp % 8);
    model_.stamp(tensor, stamp);
    const auto report = fate_of(*publisher, {tensor});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->changed_tensors, 1U);
  }
}

TEST_F(CheckedChanges, ASkippedVersionsNamesCountForTheNext) {
  PublisherOptions options = publisher_options();
  options.check_changed = true;
  options.arena_copies = 2;
  options.arena_limit_bytes = 2 * model_.bytes() + 4096;
  auto publisher = open_publisher(std::move(options));
  auto subscriber = open_subscriber(subscriber_options());
  model_.stamp_all(1);
  ASSERT_TRUE(fate_of(*publisher, {}));
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  Snapshot pinned = subscriber->snapshot();
  model_.stamp_all(2);
  const auto second = publisher->publish(model_.views(), {.changed = Changed::all()});
  ASSERT_TRUE(second && subscriber->wait_for(second->version, kPatience));
  model_.stamp(5, 3);
  ASSERT_EQ(fate_of(*publisher, {5}).error().code(), Code::out_of_space);
  pinned = Snapshot();
  model_.stamp(6, 4);
  ASSERT_TRUE(eventually([&] {
    const auto fate = fate_of(*publisher, {6});
    EXPECT_TRUE(fate || fate.error().code() == Code::out_of_space) << fate.error().message();
    return fate.has_value();
  }));
}

TEST_F(CheckedChanges, ACaptureThatBeganEarlyNeedsNoNames) {
  const auto publisher = open_checked();
  model_.stamp_all(1);
  ASSERT_TRUE(fate_of(*publisher, {}));
  BoundTensors bound = publisher->bind(model_.views());
  model_.stamp(7, 2);
  ASSERT_TRUE(bound.begin());
  ASSERT_TRUE(bound.capture(std::vector<std::uint32_t>{7}));
  const auto ended = bound.end({.changed = Changed::only({})});
  ASSERT_TRUE(ended && publisher->wait_committed(ended->version, kPatience));
  // What is given up comes with the next version, which names its own alone.
  model_.stamp(2, 3);
  ASSERT_TRUE(bound.begin());
  ASSERT_TRUE(bound.capture(std::vector<std::uint32_t>{2}));
  bound.abandon();
  EXPECT_TRUE(fate_of(*publisher, {}));
  model_.stamp(3, 4);
  EXPECT_FALSE(fate_of(*publisher, {}));
}

TEST(ChangedCheck, LeavesOutNoVersionBeforeTheOneThatBeganEarly) {
  std::vector<TensorSpec> specs;
  StampedModel model{8, 64};
  for (const TensorView& view : model.views()) specs.push_back(view.spec);
  const auto architecture = Architecture::guess_chain(specs);
  ASSERT_TRUE(architecture);
  const auto is_refused = [&](ChangedCheck& check, std::uint64_t ticket) {
    return !check.check(ticket, std::vector<std::uint32_t>{7}, **architecture);
  };
  ChangedCheck check(true);
  check.begin(1, Changed::Kind::all, {});
  check.passed(1);
  // One that forgets a tensor and is not sealed yet when the next one begins early.
  check.begin(2, Changed::Kind::only, {});
  check.leave_out(3);
  EXPECT_TRUE(is_refused(check, 2));
  // An older one fails after the early begin: that one is left out all the same.
  check.begin(3, Changed::Kind::only, {});
  EXPECT_FALSE(is_refused(check, 3));
  check.passed(3);
  check.begin(4, Changed::Kind::find, {});
  check.begin(5, Changed::Kind::only, {});
  check.leave_out(6);
  check.fail_of(4);
  check.passed(5);
  check.begin(6, Changed::Kind::only, {});
  EXPECT_FALSE(is_refused(check, 6));
  check.passed(6);
  check.begin(7, Changed::Kind::only, {});
  EXPECT_TRUE(is_refused(check, 7));
}

TEST_F(CheckedChanges, WithoutTheSwitchNothingIsCompared) {
  const auto publisher = open_publisher(publisher_options());
  model_.stamp_all(1);
  ASSERT_TRUE(fate_of(*publisher, {}));
  model_.stamp(5, 2);
  const auto report = fate_of(*publisher, {});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->changed_tensors, 0U);
}

}  // namespace
}  // namespace freshet
