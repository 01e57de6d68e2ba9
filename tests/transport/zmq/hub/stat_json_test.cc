// SPDX-License-Identifier: Apache-2.0
// A publisher's state as JSON, there and back; also from a publisher that lies.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/support/refused.h"
#include "transport/zmq/hub/hub_model.h"
#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {
namespace {

std::vector<PublisherStat> one_model() {
  PublisherStat stat{.model = "m", .newest = 9};
  stat.versions.push_back({.version = 9,
                           .step = 90,
                           .metrics = {{"loss", 0.25}, {"lr", std::numeric_limits<double>::quiet_NaN()}},
                           .published_unix_ns = 1'764'000'000'000'000'000,
                           .source = "run/step9.safetensors"});
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
  const VersionStat& version = read->at(0).versions.at(0);
  EXPECT_EQ(version.version, 9U);
  EXPECT_EQ(version.step, 90U);
  ASSERT_EQ(version.metrics.size(), 2U);
  EXPECT_EQ(version.metrics[0], (std::pair<std::string, double>("loss", 0.25)));
  EXPECT_TRUE(std::isnan(version.metrics[1].second));
  EXPECT_EQ(version.published_unix_ns, 1'764'000'000'000'000'000);
  EXPECT_EQ(version.source, "run/step9.safetensors");
}

TEST(StatJson, TheLastVersionsAreToldTheLossFirst) {
  PublisherStat stat;
  Manifest manifest;
  for (int i = 0; i < 20; ++i) manifest.metrics.emplace_back("m" + std::to_string(i), i);
  manifest.metrics.emplace_back("loss", 0.5);
  for (VersionNumber number = 1; number <= 20; ++number) {
    manifest.name.number = number;
    note_version(stat, manifest, "a\n" + std::string(2 * kVersionSourceBytesMax, 'x'));
  }
  ASSERT_EQ(stat.versions.size(), kVersionStatsMax);
  EXPECT_EQ(stat.versions.front().version, 20 - kVersionStatsMax + 1);
  EXPECT_EQ(stat.versions.back().metrics.size(), kVersionMetricsMax);
  EXPECT_EQ(stat.versions.back().metrics[0].first, "loss");
  EXPECT_EQ(stat.versions.back().metrics[1].first, "m0");
  EXPECT_LE(stat.versions.back().source.size(), kVersionSourceBytesMax);
  EXPECT_TRUE(stat.versions.back().source.starts_with("a?x"));
}

TEST(StatJson, AMemberOfAnotherKindMakesItBad) {
  for (const char* name : {"failures", "staleness_ns", "serving"}) {
    for (const nlohmann::json& wrong :
         {nlohmann::json("soon"), nlohmann::json(-1), nlohmann::json(0.5), nlohmann::json()}) {
      auto object = nlohmann::json::parse(to_json(one_model()));
      object["models"][0]["subscribers"][0][name] = wrong;
      EXPECT_TRUE(is_refused(stats_from_json(object.dump(), "there"), Code::corrupt)) << name << " " << wrong;
    }
  }
  for (const char* name : {"versions", "subscribers", "newest"}) {
    auto object = nlohmann::json::parse(to_json(one_model()));
    object["models"][0].erase(name);
    EXPECT_FALSE(stats_from_json(object.dump(), "there")) << name << " is missing";
  }
  for (const char* bad : {R"([3])", R"({"loss":1})", R"([["loss","1"]])", R"([["loss"]])"}) {
    auto lying = nlohmann::json::parse(to_json(one_model()));
    lying["models"][0]["versions"][0]["metrics"] = nlohmann::json::parse(bad);
    EXPECT_FALSE(stats_from_json(lying.dump(), "there")) << bad;
  }
  auto object = nlohmann::json::parse(to_json(one_model()));
  object["models"][0]["subscribers"][0]["staleness_ns"] = std::uint64_t{1} << 63;
  const auto read = stats_from_json(object.dump(), "there");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->at(0).subscribers.at(0).staleness, Duration::max()) << "and not a negative one";
}

}  // namespace
}  // namespace freshet
