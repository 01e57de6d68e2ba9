// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/schedules/cases.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "benchmarks/schedules/contenders.h"
#include "benchmarks/schedules/summary.h"
#include "benchmarks/schedules/synthetic.h"

namespace freshet::benchmarks {
namespace {

Case some_case(std::size_t curve, const Price& price) {
  auto made = make_case(synthetic_curves().at(curve), Group::synthetic, price);
  EXPECT_TRUE(made);
  return *std::move(made);
}

std::map<std::string, Outcome> outcomes_of(const Case& played) {
  auto outcomes = play(played);
  EXPECT_TRUE(outcomes) << (outcomes ? "" : outcomes.error().message());
  return outcomes ? *std::move(outcomes) : std::map<std::string, Outcome>{};
}

TEST(Cases, RequestsSpanTheTraining) {
  const Case made = some_case(0, kDear);
  const Horizon& horizon = made.clock.horizon();
  EXPECT_EQ(horizon.warmup, 400);
  EXPECT_EQ(horizon.rows, 4000);
  EXPECT_EQ(made.epoch_rows, 225);
  const std::int64_t last_served = made.clock.served_at(16 * 225 + 400, 16);
  EXPECT_NEAR(static_cast<double>(made.clock.end()), static_cast<double>(last_served), 3.1e6);
}

TEST(Cases, HalvesAlternateInTheFilesOrder) {
  std::vector<LearningCurve> recorded = synthetic_curves();
  recorded.resize(3);
  const auto cases = make_cases(recorded, {});
  ASSERT_TRUE(cases);
  std::vector<Group> groups;
  for (const Case& one : *cases) groups.push_back(one.group);
  const Group tuned = Group::tuned_on, held = Group::held_back;
  EXPECT_EQ(groups, (std::vector<Group>{tuned, tuned, held, held, tuned, tuned}));
}

TEST(Contenders, NobodyBeatsTheOracle) {
  for (const std::size_t curve : {1u, 2u, 5u}) {
    for (const Price& price : {kCheap, kDear}) {
      const auto outcomes = outcomes_of(some_case(curve, price));
      for (const char* contender : kContenders) {
        EXPECT_GE(outcomes.at(contender).loss, outcomes.at(kOracle).loss * (1 - 1e-12)) << contender;
      }
      EXPECT_LE(outcomes.at(kBestEvery).loss, outcomes.at(kFixed).loss);
    }
  }
}

/// What a schedule may not know must not change what it decides: held-out losses at all, and training losses of later
/// rows.
TEST(Contenders, DecideWithoutTheFuture) {
  const Case made = some_case(2, kDear);
  const auto outcomes = outcomes_of(made);
  constexpr std::int64_t kFrom = 2000;
  Case corrupted = made;
  for (double& loss : corrupted.trend) loss = 100 - loss;
  for (std::size_t i = kFrom; i < corrupted.loss.size(); ++i) corrupted.loss[i] = i % 2 == 0 ? 1e9 : 1e-9;
  const auto after = outcomes_of(corrupted);
  for (const char* contender : {kEpoch, kFixed, kGreedy, kOptimal}) {
    EXPECT_EQ(after.at(contender).rows, outcomes.at(contender).rows) << contender;
  }
  const auto until = [](PublishRows rows) {
    std::erase_if(rows, [](std::int64_t row) { return row > kFrom; });
    return rows;
  };
  EXPECT_FALSE(until(outcomes.at(kOnline).rows).empty());
  EXPECT_EQ(until(after.at(kOnline).rows), until(outcomes.at(kOnline).rows));
  EXPECT_NE(after.at(kOnline).rows, outcomes.at(kOnline).rows);  // The later losses do reach it.
}

TEST(Summary, CountsWhatItSays) {
  const Case plain = some_case(0, kCheap);
  Case overfitting = plain;
  overfitting.overfits = true;
  const auto played = [](const Case& of, double epoch, double fixed, double online) {
    Played one{.of = &of};
    for (const char* contender : kContenders) one.outcomes[contender].loss = 3;
    one.outcomes[kOracle].loss = 2;
    one.outcomes[kEpoch].loss = epoch;
    one.outcomes[kFixed].loss = fixed;
    one.outcomes[kOnline].loss = online;
    return one;
  };
  const std::vector<Played> all = {played(plain, 4, 2, 2), played(plain, 4, 3, 6), played(overfitting, 8, 4, 8)};
  const Summary summary = summarize({&all[0], &all[1], &all[2]});
  EXPECT_EQ(summary.cases, 3u);
  EXPECT_DOUBLE_EQ(summary.median.at(kOnline), 3);
  EXPECT_DOUBLE_EQ(summary.median.at(kGreedy), 1.5);
  EXPECT_DOUBLE_EQ(summary.worst_online, 3);
  EXPECT_DOUBLE_EQ(summary.worst_online_overfit, 4);
  EXPECT_DOUBLE_EQ(summary.worst_to_epoch, 1.5);
  EXPECT_DOUBLE_EQ(summary.not_above_epoch, 2.0 / 3);
  EXPECT_DOUBLE_EQ(summary.median_to_fixed, 2);
  EXPECT_DOUBLE_EQ(summarize({&all[0], &all[1]}).median.at(kOnline), 2);
}

TEST(Program, PrintsOneJsonLine) {
  FILE* output = ::popen(SCHEDULES_PROGRAM " --quick --json 2>/dev/null", "r");
  ASSERT_NE(output, nullptr);
  std::string text;
  for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) text.push_back(static_cast<char>(c));
  EXPECT_EQ(::pclose(output), 0);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto report = nlohmann::json::parse(text, nullptr, false);
  ASSERT_FALSE(report.is_discarded());
  EXPECT_EQ(report.at("benchmark"), "schedules");
  EXPECT_GT(report.at("rows").size(), 20u);
  for (const auto& row : report.at("rows")) {
    for (const char* key : {"case", "subject", "unit", "median", "min", "max", "n"}) EXPECT_TRUE(row.contains(key));
  }
  for (const char* ratio : {"online_median", "online_worst", "online_to_epoch_worst", "online_not_above_epoch",
                            "online_to_fixed_median", "tuned_on_online_median", "held_back_online_median"}) {
    EXPECT_TRUE(report.at("ratios").contains(ratio)) << ratio;
  }
}

}  // namespace
}  // namespace freshet::benchmarks
