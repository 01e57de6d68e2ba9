// SPDX-License-Identifier: Apache-2.0
/// A publisher that is told to close: what was published is sealed, or said to be dropped.

#include <gmock/gmock.h>

#include <latch>

#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "transport/publish/capture.h"

namespace freshet {
namespace {

using namespace freshet::test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PublisherClose : public StreamTest {
 protected:
  StampedModel model_{4, 1000};
};

TEST_F(PublisherClose, EndsTheServiceAndEachCallSaysSo) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  model_.stamp_all(7);
  ASSERT_TRUE(publisher->publish(model_.views(), {}));
  const Status closed = publisher->close(kPatience);
  ASSERT_TRUE(closed) << closed.error().message();
  EXPECT_TRUE(publisher->wait_committed(1, Duration(0))) << "the version was sealed before";
  EXPECT_TRUE(publisher->close(Duration(0))) << "a second close does nothing";
  EXPECT_TRUE(is_refused(publisher->publish(model_.views(), {}), Code::failed_precondition, "was closed"));
  EXPECT_EQ(publisher->release().error().code(), Code::failed_precondition);
  const auto views = model_.views();
  BoundTensors bound = publisher->bind({views.begin(), views.end()});
  EXPECT_EQ(bound.publish({}).error().code(), Code::failed_precondition);
  EXPECT_EQ(bound.begin().error().code(), Code::failed_precondition);
  EXPECT_EQ(publisher->stat().newest, 1U);
}

/// Whichever were sealed by then: the answer, the reports and what is served agree.
TEST_F(PublisherClose, AtOnceDropsVersionsAndNamesThem) {
  for (int round = 0; round < 20; ++round) {
    auto publisher = open_publisher(publisher_options());
    std::vector<VersionNumber> published;
    for (std::uint64_t stamp = 1; stamp <= 3; ++stamp) {
      model_.stamp_all(stamp);
      const auto receipt = publisher->publish(model_.views(), {});
      ASSERT_TRUE(receipt) << receipt.error().message();
      published.push_back(receipt->version);
    }
    const Status closed = publisher->close(Duration(0));
    std::vector<VersionNumber> dropped;
    for (const VersionNumber version : published) {
      const auto report = publisher->wait_committed(version, kPatience);
      if (report) continue;
      EXPECT_EQ(report.error().code(), Code::cancelled) << report.error().message();
      dropped.push_back(version);
    }
    EXPECT_EQ(dropped.empty(), closed.has_value());
    if (closed) continue;
    EXPECT_EQ(closed.error().code(), Code::cancelled);
    for (const VersionNumber version : dropped) {
      EXPECT_THAT(closed.error().message(), HasSubstr(std::to_string(version)));
    }
    EXPECT_EQ(dropped.back(), published.back()) << "the last ones are dropped";
  }
}

TEST_F(PublisherClose, ForEverSealsAllVersions) {
  for (int round = 0; round < 20; ++round) {
    auto publisher = open_publisher(publisher_options());
    for (std::uint64_t stamp = 1; stamp <= 3; ++stamp) {
      model_.stamp_all(stamp);
      ASSERT_TRUE(publisher->publish(model_.views(), {}));
    }
    const Status closed = publisher->close(Duration::max());
    ASSERT_TRUE(closed) << closed.error().message();
  }
}

/// The name and the address are free at once.
TEST_F(PublisherClose, LeavesTheNameToTheNextPublisher) {
  auto publisher = open_publisher(publisher_options());
  publish(*publisher, model_);
  ASSERT_TRUE(publisher->close(Duration(0)));
  publisher.reset();
  auto next = open_publisher(publisher_options());
  EXPECT_EQ(publish(*next, model_), 2U);
}

TEST_F(PublisherClose, AWaitEndsWhenItsCallerStopsIt) {
  auto publisher = open_publisher(publisher_options());
  std::stop_source stop;
  stop.request_stop();
  // It is sealed already, or the wait is stopped.
  model_.stamp_all(1);
  const auto receipt = publisher->publish(model_.views(), {.sync = true, .stop = stop.get_token()});
  if (!receipt) {
    EXPECT_EQ(receipt.error().code(), Code::cancelled) << receipt.error().message();
  }
  EXPECT_TRUE(publisher->wait_committed(1, kPatience));
  EXPECT_EQ(ask_publisher_stat(publisher->address(), "", kPatience, {}, stop.get_token()).error().code(),
            Code::cancelled);
  EXPECT_EQ(ask_activate({.model = "demo", .at = publisher->address()}, {}, stop.get_token()).error().code(),
            Code::cancelled);
}

/// Seals only when it is let.
TEST(CaptureSealing, WhatWasNotBegunIsDroppedByItsTicket) {
  std::latch begun(1);
  std::latch go_on(1);
  std::vector<std::uint64_t> sealed;
  auto capture = Capture::open({.name = "test"}, {.on_sealed = [&](const SealedCapture& done) {
                                 sealed.push_back(done.ticket);
                                 if (done.ticket == 5) {
                                   begun.count_down();
                                   go_on.wait();
                                 }
                                 return true;
                               }});
  ASSERT_TRUE(capture) << capture.error().message();
  StampedModel model(2, 100);
  std::vector<TensorSpec> specs;
  for (const TensorView& view : model.views()) specs.push_back(view.spec);
  ASSERT_TRUE((*capture)->prepare(**Architecture::guess_chain(specs)));
  const auto take = [&](std::uint64_t ticket) {
    model.stamp_all(ticket);
    const auto views = model.views();
    return (*capture)->capture({.ticket = ticket, .tensors = views});
  };
  ASSERT_TRUE(take(5));
  begun.wait();
  ASSERT_TRUE(take(6));
  EXPECT_THAT((*capture)->drop_unbegun(), ElementsAre(6));
  go_on.count_down();
  EXPECT_TRUE((*capture)->wait_idle(kPatience));
  EXPECT_THAT((*capture)->drop_unbegun(), ElementsAre());
  capture->reset();
  EXPECT_THAT(sealed, ElementsAre(5));
}

}  // namespace
}  // namespace freshet
