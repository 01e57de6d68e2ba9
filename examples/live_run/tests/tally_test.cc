// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/report/tally.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace freshet::live {
namespace {

TEST(Percentile, IsTheNearestRank) {
  std::vector<double> samples(1000);
  std::iota(samples.rbegin(), samples.rend(), 1.0);
  EXPECT_EQ(percentile(samples, 0.5), 500);
  EXPECT_EQ(percentile(samples, 0.99), 990);
  EXPECT_EQ(percentile(samples, 0.999), 999);
  EXPECT_EQ(percentile({3}, 0.99), 3);
  EXPECT_TRUE(std::isnan(percentile({}, 0.5)));
}

TEST(Tally, AddsLivesAndTakesTheLastWordOfEach) {
  Tally tally;
  const auto load = [](int requests, int failed, int torn) {
    return nlohmann::json{{"event", "load"},        {"requests", requests}, {"failed", failed},
                          {"torn", torn},           {"checked", requests},  {"loss_sum", 2.0 * requests},
                          {"loss_count", requests}, {"versions", {1, 2}},   {"latencies_ms", {1.0, 2.0}}}
        .dump();
  };
  ASSERT_TRUE(tally.on_line(load(10, 1, 0), 5, 1));
  ASSERT_TRUE(tally.on_line(load(20, 1, 0), 5, 2));
  ASSERT_TRUE(tally.on_line(load(7, 0, 3), 9, 3));  // After a restart it counts from zero.
  const Summary summary = tally.summary();
  EXPECT_EQ(summary.requests, 27u);
  EXPECT_EQ(summary.failed_requests, 1u);
  EXPECT_EQ(summary.torn_reads, 3u);
  EXPECT_EQ(summary.checked_answers, 27u);
  EXPECT_EQ(summary.versions_served, 2u);
  EXPECT_DOUBLE_EQ(summary.served_loss, 2.0);
  EXPECT_DOUBLE_EQ(summary.cumulative_inference_loss, 74.0);
}

TEST(Tally, KnowsVersionsFromWhoeverSawThem) {
  Tally tally;
  ASSERT_TRUE(tally.on_line(R"({"event":"version","version":1,"step":0,"loss":null,"bytes":100,"tensors":9,)"
                            R"("blocked_ms":2.5,"commit_ms":3,"skipped":1})",
                            1, 0));
  ASSERT_TRUE(
      tally.on_line(R"({"event":"update","version":2,"joined":false,"latency_ms":4,"notify_us":50,"bytes":10})", 2, 1));
  ASSERT_TRUE(tally.on_line(
      R"({"event":"update","version":2,"joined":true,"latency_ms":9000,"notify_us":5,"bytes":10})", 3, 1));
  ASSERT_TRUE(
      tally.on_line(R"({"event":"stored","version":2,"stored":true,"error":"","bytes":1,"gap":0,"put_ms":1})", 3, 1));
  ASSERT_TRUE(tally.on_line(
      R"({"event":"stored","version":3,"stored":false,"error":"no room","bytes":1,"gap":0,"put_ms":1})", 3, 1));
  EXPECT_EQ(tally.versions_published(), 2u);
  EXPECT_EQ(tally.newest_stored, 2u);
  EXPECT_EQ(tally.repository_error, "no room");
  const Summary summary = tally.summary();
  EXPECT_EQ(summary.versions_skipped, 1u);
  EXPECT_EQ(summary.bytes_published, 100u);
  EXPECT_EQ(summary.blocked_ms_p50, 2.5);
  EXPECT_EQ(summary.update_latency_ms_p99, 4);
}

TEST(Tally, RefusesWhatIsNoReport) {
  Tally tally;
  for (const char* line : {"", "hello", "[1]", "{}", R"({"event":3})", R"({"event":"step"})",
                           R"({"event":"load","requests":"many"})", R"({"event":"server","stalls_us":["x"]})"}) {
    EXPECT_FALSE(tally.on_line(line, 1, 0)) << line;
  }
  EXPECT_TRUE(tally.on_line(R"({"event":"something new"})", 1, 0));
}

TEST(Summary, HasEveryKeyThatOthersRelyOn) {
  const auto json = to_json(Tally().summary());
  for (const char* key : {"steps", "versions_published", "versions_served", "requests", "failed_requests", "torn_reads",
                          "model_bytes", "bytes_published", "served_loss", "trained_loss", "initial_loss",
                          "repo_versions", "repo_bytes", "full_copy_bytes", "restarts"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"update_latency_ms", "notify_us", "blocked_ms"}) {
    EXPECT_TRUE(json.contains(key) && json[key].contains("p50") && json[key].contains("p99")) << key;
  }
  EXPECT_TRUE(json["reader_stall_us"].contains("p99") && json["reader_stall_us"].contains("p999"));
  for (const char* key : {"p50", "p99", "p999", "max"}) EXPECT_TRUE(json["loop_call_ms"].contains(key)) << key;
}

TEST(Tally, CountsWhatEachStepCostTheLoop) {
  Tally tally;
  ASSERT_TRUE(tally.on_line(R"({"event":"step","step":2,"loss":1.5,"loop_calls_ms":[0.5,4]})", 1, 0));
  ASSERT_TRUE(tally.on_line(R"({"event":"step","step":3,"loss":null,"loop_calls_ms":[0.25]})", 1, 1));
  const Summary summary = tally.summary();
  EXPECT_EQ(summary.loop_call_ms_p50, 0.5);
  EXPECT_EQ(summary.loop_call_ms_max, 4);
}

}  // namespace
}  // namespace freshet::live
