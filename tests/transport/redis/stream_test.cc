// SPDX-License-Identifier: Apache-2.0
// Publishers and subscribers that find each other through Redis.

#include <gtest/gtest.h>

#include "tests/support/redis_command.h"
#include "tests/support/redis_server.h"
#include "tests/support/refused.h"
#include "tests/transport/model_fixture.h"
#include "tests/transport/peer_process.h"
#include "transport/directory/directory.h"

namespace freshet {
namespace {

using namespace freshet::test;

class RedisStream : public StreamTest {
 protected:
  void SetUp() override {
    if (!server_.why_not().empty()) GTEST_SKIP() << server_.why_not();
    ::setenv("FRESHET_RUN_DIR", folder_.path().c_str(), 1);
    grow_old();
  }
  void TearDown() override { ::unsetenv("FRESHET_RUN_DIR"); }
  /// As if the directory had been there for long: no name is in quarantine.
  void grow_old() { command({"SET", "freshet:born", "1"}); }
  std::string command(const std::vector<std::string>& words) { return redis_command(server_.socket(), words); }
  PublisherOptions publishes() const {
    return {.model = "demo", .hub_options = {.listen = "tcp://127.0.0.1:*", .directory = server_.tcp_address()}};
  }
  SubscriberOptions subscribes() const { return {.model = "demo", .directory = server_.tcp_address()}; }

  RedisServer server_;
};

TEST_F(RedisStream, AnOutageStopsNobodyAndAWipedDirectoryIsWrittenAgain) {
  StampedModel model(4, 1000);
  const auto subscriber = open_subscriber(subscribes());
  const auto publisher = open_publisher(publishes());
  ASSERT_EQ(publish(*publisher, model), 1U);
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  EXPECT_EQ(subscriber->status().directory, "reachable");
  server_.kill();
  ASSERT_TRUE(eventually([&] { return publisher->stat().directory.find("away") != std::string::npos; }));
  for (VersionNumber number = 2; number <= 20; ++number) ASSERT_EQ(publish(*publisher, model), number);
  ASSERT_TRUE(subscriber->wait_for(20, kPatience));
  EXPECT_TRUE(subscriber->status().connected);
  // Back, and empty.
  server_.start();
  const auto late = open_subscriber(subscribes());
  ASSERT_TRUE(late->wait_for(20, kPatience));
  ASSERT_EQ(publish(*publisher, model), 21U);
  ASSERT_TRUE(late->wait_for(21, kPatience));
  ASSERT_TRUE(subscriber->wait_for(21, kPatience));
}

TEST_F(RedisStream, AClosingPublisherDoesNotWaitForADirectoryThatIsAway) {
  StampedModel model(4, 1000);
  const auto publisher = open_publisher(publishes());
  ASSERT_EQ(publish(*publisher, model), 1U);
  server_.kill();
  // Above the numbers that are reserved, so that the seal has to ask.
  constexpr VersionNumber kFar = 1'000'000;
  const auto receipt = publisher->publish(model.views(), {.number = kFar});
  ASSERT_TRUE(receipt) << receipt.error().message();
  const Status closed = publisher->close(Duration(0));
  const auto report = publisher->wait_committed(kFar, kPatience);
  ASSERT_FALSE(report);
  // The seal gave up by itself only if this thread slept for as long as a caller of the directory waits.
  if (report.error().code() == Code::unavailable) return;
  EXPECT_EQ(report.error().code(), Code::cancelled) << report.error().message();
  ASSERT_TRUE(is_refused(closed, Code::cancelled, "1000000"));
}

TEST_F(RedisStream, NewsComesThroughRedisWhenItIsAskedTo) {
  StampedModel model(4, 1000);
  SubscriberOptions options = subscribes();
  options.notifier = Notifier::directory;
  options.every = true;  // Others may have their version before they hear of it.
  std::atomic<bool> notified = false;
  options.on_update = [&](const Update& update) { notified = notified || update.notify.count() > 0; };
  const auto subscriber = open_subscriber(options);
  const auto publisher = open_publisher(publishes());
  ASSERT_TRUE(eventually(
      [&] { return publish(*publisher, model) > 0 && subscriber->next(std::chrono::seconds(1)) && notified; }));
  options.directory = folder_.path();
  EXPECT_EQ(Subscriber::open(options).error().code(), Code::unsupported);
}

TEST_F(RedisStream, SubscribersFollowTheNameToWhoeverTookIt) {
  StampedModel model(4, 1000);
  const auto first = open_publisher(publishes());
  EXPECT_TRUE(is_refused(Publisher::open(publishes()), Code::already_exists, std::to_string(::getpid())));
  const auto subscriber = open_subscriber(subscribes());
  ASSERT_EQ(publish(*first, model), 1U);
  ASSERT_TRUE(subscriber->wait_for(1, kPatience));
  // As if the first had been cut off from Redis for longer than its lease.
  Result<std::unique_ptr<Publisher>> second = fail(Code::unavailable, "");
  ASSERT_TRUE(eventually([&] {
    command({"DEL", "freshet:demo:claim"});
    return (second = Publisher::open(publishes())).has_value();
  }));
  const VersionNumber next = publish(**second, model);
  EXPECT_GT(next, 1U);
  ASSERT_TRUE(subscriber->wait_for(next, kPatience)) << subscriber->status().last_error;
  // The first one gives no numbers any more, and says who does.
  Result<PublishReceipt> late = fail(Code::unavailable, "");
  ASSERT_TRUE(eventually([&] { return !(late = first->publish(model.views(), {})).has_value(); }));
  EXPECT_EQ(late.error().code(), Code::failed_precondition) << late.error().message();
  first->stat();
}

TEST_F(RedisStream, WhatSomebodySwapsInTheDirectoryIsObeyed) {
  StampedModel model(4, 1000);
  PublisherOptions options = publishes();
  options.keep_versions = 4;
  const auto publisher = open_publisher(options);
  for (VersionNumber number = 1; number <= 3; ++number) ASSERT_EQ(publish(*publisher, model), number);
  const auto subscriber = open_subscriber(subscribes());
  ASSERT_TRUE(subscriber->wait_for(3, kPatience));
  const auto directory = open_directory(server_.tcp_address());
  ASSERT_TRUE(directory);
  // The publisher's own record may lag; it is what it is once it has version 3.
  ASSERT_TRUE(eventually([&] { return (*directory)->current("demo").value_or(CurrentVersion{}).version == 3; }));
  const CurrentVersion held{.epoch = 1, .version = 2, .hold = true};
  ASSERT_TRUE((*directory)->compare_and_swap_current("demo", {.version = 3}, held));
  ASSERT_TRUE(eventually([&] { return subscriber->status().serving == 2; })) << subscriber->status().last_error;
  const CurrentVersion current{.epoch = 1, .version = 2, .hold = true};
  // Each of the two is told by Redis itself, a moment after the swap.
  EXPECT_TRUE(eventually([&] { return subscriber->status().current == current; }));
  ASSERT_TRUE(eventually([&] { return publisher->stat().current == current; }));
  // And it holds.
  ASSERT_EQ(publish(*publisher, model), 4U);
  EXPECT_EQ(publisher->stat().current.version, 2U);
}

TEST_F(RedisStream, WhatIsCurrentIsLearnedWhileThePublisherIsSilent) {
  auto publisher = PeerProcess::publisher(server_.tcp_address(), 4, 1000);
  ASSERT_EQ(publisher.hear(), "ready");
  const auto subscriber = open_subscriber(subscribes());
  ASSERT_EQ(publisher.ask("publish 1"), "version 1");
  ASSERT_TRUE(subscriber->wait_for(1, kPatience)) << subscriber->status().last_error;
  const auto directory = open_directory(server_.tcp_address());
  ASSERT_TRUE(directory);
  ASSERT_TRUE(eventually([&] { return (*directory)->current("demo").value_or(CurrentVersion{}).version == 1; }));
  publisher.stop();
  // Of what is served already nothing need be fetched: it is obeyed at once.
  ASSERT_TRUE((*directory)->compare_and_swap_current("demo", {.version = 1}, {.epoch = 1, .version = 1, .hold = true}));
  const CurrentVersion current{.epoch = 1, .version = 1, .hold = true};
  EXPECT_TRUE(eventually([&] { return subscriber->status().epoch == 1 && subscriber->status().current == current; }));
  // What its subscriber says of a later epoch is not taken for a lost record: the directory is asked first.
  publisher.go_on();
  ASSERT_EQ(publisher.ask("publish 2"), "version 2");
  const auto is_held = [&] {
    const auto stats = (*directory)->lookup("demo").and_then([](const auto& entry) {
      return ask_publisher_stat(entry.control, "demo", kPatience);
    });
    return stats && stats->front().current == current;
  };
  EXPECT_TRUE(eventually(is_held));
  EXPECT_EQ((*directory)->current("demo").value_or(CurrentVersion{}),
            (CurrentVersion{.epoch = 1, .version = 1, .hold = true}));
  EXPECT_TRUE(eventually([&] { return subscriber->status().serving == 1; }));
}

TEST_F(RedisStream, AnAddressThatTheListenerDoesNotSayIsAdvertised) {
  PublisherOptions options = publishes();
  options.hub_options.advertise = {"tcp://10.1.2.3:7070", "tcp://10.1.2.4:7070"};
  const auto publisher = open_publisher(options);
  const auto directory = open_directory(server_.tcp_address());
  ASSERT_TRUE(directory);
  const auto entry = (*directory)->lookup("demo");
  ASSERT_TRUE(entry) << entry.error().message();
  EXPECT_EQ(entry->control, "tcp://10.1.2.3:7070");
  EXPECT_EQ(entry->also, std::vector<std::string>{"tcp://10.1.2.4:7070"});
  EXPECT_FALSE(entry->host.empty());
  PublisherOptions bad = publishes();
  bad.model = "demo-2";
  bad.hub_options.advertise = {"tcp://10.1.2.3"};
  EXPECT_EQ(Publisher::open(bad).error().code(), Code::invalid_argument);
}

}  // namespace
}  // namespace freshet
