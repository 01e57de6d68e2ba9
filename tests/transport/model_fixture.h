// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the transport tests share: a host directory of their own, models whose bytes say which version they belong to,
/// and conditions with deadlines.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>

#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/transport/stamped_model.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::test {

inline constexpr Duration kPatience = std::chrono::seconds(60);

/// Waits for a condition that no other call waits for.
inline bool eventually(const std::function<bool()>& condition) { return came_true(condition); }

inline std::unique_ptr<Publisher> open_publisher(PublisherOptions options) {
  auto publisher = Publisher::open(std::move(options));
  EXPECT_TRUE(publisher) << publisher.error().message();
  return publisher ? std::move(*publisher) : nullptr;
}

inline std::unique_ptr<Subscriber> open_subscriber(SubscriberOptions options) {
  auto subscriber = Subscriber::open(std::move(options));
  EXPECT_TRUE(subscriber) << subscriber.error().message();
  return subscriber ? std::move(*subscriber) : nullptr;
}

/// A model that no other process publishes: a port that a test leaves may be one's that runs beside it a moment later.
inline const std::string& own_model() {
  static const std::string name = "demo-" + std::to_string(::getpid());
  return name;
}

/// A test with a host directory of its own.
class StreamTest : public ::testing::Test {
 protected:
  PublisherOptions publisher_options(const std::string& model = "demo") const {
    return {.model = model, .hub_options = {.directory = folder_.path()}};
  }
  SubscriberOptions subscriber_options(const std::string& model = "demo") const {
    return {.model = model, .directory = folder_.path()};
  }
  SubscriberOptions every_options(const std::string& model = "demo") const {
    SubscriberOptions options = subscriber_options(model);
    options.every = true;
    return options;
  }

  TemporaryFolder folder_;
};

/// Publishes and waits until it is announced. Returns its number, 0 for an error (which fails the test).
inline VersionNumber publish(Publisher& publisher, const StampedModel& model, PublishOptions options = {}) {
  const auto receipt = publisher.publish(model.views(), std::move(options));
  EXPECT_TRUE(receipt) << receipt.error().message();
  if (!receipt) return 0;
  const auto report = publisher.wait_committed(receipt->version, kPatience);
  EXPECT_TRUE(report) << report.error().message();
  return report ? receipt->version : 0;
}

}  // namespace freshet::test
