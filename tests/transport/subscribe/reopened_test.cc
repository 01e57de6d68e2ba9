// SPDX-License-Identifier: Apache-2.0
/// Publishers that end and are opened again, and a subscriber whose clock all but stands still: it comes to no
/// heartbeat and to no retry, so what reaches it was not waited for.

#include <gtest/gtest.h>

#include "tests/transport/model_fixture.h"
#include "transport/protocol/publisher/waiting_hellos.h"

namespace freshet {
namespace {

using namespace freshet::test;

constexpr int kLives = 10;
constexpr Duration kRetry = std::chrono::seconds(1);  ///< After a refusal.

class Reopened : public StreamTest {
 protected:
  SubscriberOptions slow_options() const {
    SubscriberOptions options = subscriber_options();
    options.clock = &clock_;
    return options;
  }
  /// A life of a publisher, seen by the subscriber.
  void live(PublisherOptions options, Subscriber& subscriber) {
    auto publisher = open_publisher(std::move(options));
    ASSERT_NE(publisher, nullptr);
    const bool is_forgotten = system_clock().now() - left_at_ >= protocol::WaitingHellos::kKeptFor;
    model_.stamp_all(++stamp_);
    const VersionNumber version = publish(*publisher, model_);
    // A hub keeps a Hello by the real clock. On a machine that was this slow, the subscriber comes to its retry.
    if (is_forgotten) {
      ASSERT_TRUE(eventually([&] { return retry_brings(version, subscriber); }));
    }
    const Status came = subscriber.wait_for(version, kPatience);
    ASSERT_TRUE(came) << came.error().message() << "; " << subscriber.status().last_error;
    left_at_ = system_clock().now();
    ASSERT_TRUE(publisher->close(kPatience));
    ASSERT_TRUE(eventually([&] { return !subscriber.status().connected; }));
    clock_.advance(std::chrono::milliseconds(5));  // All lives together take less than a retry.
  }
  bool retry_brings(VersionNumber version, Subscriber& subscriber) {
    clock_.advance(kRetry);
    return static_cast<bool>(subscriber.wait_for(version, kRetry / 4));
  }

  ManualClock clock_;
  Time left_at_ = system_clock().now();  ///< No Hello was refused before.
  StampedModel model_{4, 1000};
  std::uint64_t stamp_ = 0;
};

TEST_F(Reopened, AHubThatStaysAnswersTheHelloThatItRefused) {
  auto hub = open_publisher_hub({.directory = folder_.path()});
  ASSERT_TRUE(hub) << hub.error().message();
  SubscriberOptions options = slow_options();
  options.at = {address_of(**hub)};
  options.directory.clear();
  auto subscriber = open_subscriber(std::move(options));
  for (int life = 0; life < kLives && !HasFatalFailure(); ++life) live({.model = "demo", .hub = *hub}, *subscriber);
}

TEST_F(Reopened, ANewHubIsFoundByTheDirectory) {
  auto subscriber = open_subscriber(slow_options());
  for (int life = 0; life < kLives && !HasFatalFailure(); ++life) live(publisher_options(), *subscriber);
}

TEST_F(Reopened, ThePublisherKnowsWhatIsServedWithoutAPing) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(slow_options());
  for (int round = 0; round < kLives; ++round) {
    model_.stamp_all(++stamp_);
    const VersionNumber version = publish(*publisher, model_);
    ASSERT_TRUE(subscriber->wait_for(version, kPatience));
    EXPECT_TRUE(eventually([&] {
      const auto subscribers = publisher->stat().subscribers;
      return subscribers.size() == 1 && subscribers[0].serving == version;
    }));
  }
}

}  // namespace
}  // namespace freshet
