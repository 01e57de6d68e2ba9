// SPDX-License-Identifier: Apache-2.0
// A publisher's state as JSON, there and back; also from a publisher of an older release, and from one that lies.

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

std::vector<PublisherStat> one_model() {
  PublisherStat stat{.model = "m", .newest = 9};
  stat.subscribers.push_back({.label = "first",
                              .pid = 3,
                              .serving = 8,
                              .held = {8},
                              .failures = 2,
                              .staleness = std::chrono::milliseconds(1500)});
  return {stat};
}

TEST(StatJson, ComesBackAsItWas) {
  const auto read = stats_from_json(to_json(one_model()), "there");
  ASSERT_TRUE(read) << read.error().message();
  const SubscriberStat& one = read->at(0).subscribers.at(0);
  EXPECT_EQ(one.label, "first");
  EXPECT_EQ(one.failures, 2U);
  EXPECT_EQ(one.staleness, std::chrono::milliseconds(1500));
}

TEST(StatJson, AnOlderPublisherIsRead) {
  auto object = nlohmann::json::parse(to_json(one_model()));
  for (const char* later : {"failures", "staleness_ns"}) {
    ASSERT_EQ(object["models"][0]["subscribers"][0].erase(later), 1U);
  }
  const auto read = stats_from_json(object.dump(), "there");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->at(0).subscribers.at(0).failures, 0U);
  EXPECT_FALSE(read->at(0).subscribers.at(0).staleness) << "it did not say";
}

TEST(StatJson, AMemberOfAnotherKindMakesItBad) {
  for (const char* name : {"failures", "staleness_ns", "serving"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json("soon"), nlohmann::json(-1), nlohmann::json(0.5), nlohmann::json()}) {
      auto object = nlohmann::json::parse(to_json(one_model()));
      object["models"][0]["subscribers"][0][name] = wrong;
      const auto read = stats_from_json(object.dump(), "there");
      ASSERT_FALSE(read) << name << " " << wrong;
      EXPECT_EQ(read.error().code(), Code::corrupt);
    }
  }
  auto object = nlohmann::json::parse(to_json(one_model()));
  object["models"][0]["subscribers"][0]["staleness_ns"] = std::uint64_t{1} << 63;
  const auto read = stats_from_json(object.dump(), "there");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->at(0).subscribers.at(0).staleness, Duration::max()) << "and not a negative one";
}

}  // namespace
}  // namespace freshet
