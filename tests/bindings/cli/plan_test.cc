// SPDX-License-Identifier: Apache-2.0
// `freshet plan` on files of the test's own. What it answers is checked against sums that are made here, request by
// request.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "core/base/format.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kPlanSeed = 20240816;
constexpr int kRows = 400;
constexpr int kWarmup = 60;

struct Training {
  std::vector<double> losses;
  std::vector<double> eval_losses;
};

/// Losses are multiples of 1/1024, so that sums of them are exact.
Training random_training() {
  std::mt19937_64 random(kPlanSeed);
  std::normal_distribution<> noise(0, 0.03);
  Training training;
  for (int row = 1; row <= kRows; ++row) {
    const double trend = 0.25 + 2 * std::pow(row, -0.4);
    training.losses.push_back(std::round((trend + noise(random)) * 1024) / 1024);
    training.eval_losses.push_back(std::round((trend + 0.05 + noise(random) / 4) * 1024) / 1024);
  }
  return training;
}

std::string written(const TemporaryFolder& folder, const std::string& text, const std::string& name = "losses.csv") {
  const std::string path = folder / name;
  std::ofstream(path) << text;
  return path;
}

/// Steps are 10, 20, 30, …
std::string csv_of(const Training& training, bool with_eval) {
  std::string text = with_eval ? "step,loss,eval_loss\n" : "step,loss\n";
  for (std::size_t i = 0; i < training.losses.size(); ++i) {
    text += format("{},{}", (i + 1) * 10, training.losses[i]);
    text += with_eval ? format(",{}\n", training.eval_losses[i]) : "\n";
  }
  return text;
}

std::vector<std::string> line(const std::string& file, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"plan",         file,   "--warmup",      "60",    "--step-ms",  "10",
                                 "--stall-ms",   "12.5", "--delivery-ms", "30.25", "--infer-ms", "4.5",
                                 "--inferences", "1200"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// The sum as the contract tells it, request by request. Times in units of 10 µs, so that all are whole.
double summed(const std::vector<double>& costs, const Json& publishes) {
  constexpr long kStep = 1000, kStall = 1250, kDelivery = 3025, kBetween = 450;
  double sum = 0;
  for (long j = 1; j <= 1200; ++j) {
    long served = kWarmup;
    long k = 0;
    for (const Json& step : publishes) {
      const long row = step.get<long>() / 10;
      if ((row - kWarmup) * kStep + ++k * kStall + kDelivery <= j * kBetween) served = row;
    }
    sum += costs[static_cast<std::size_t>(served - 1)];
  }
  return sum;
}

TEST(Plan, AReplaySumsWhatEachScheduleCosts) {
  TemporaryFolder folder;
  const Training training = random_training();
  for (const bool with_eval : {false, true}) {
    const Ended ended =
        run(line(written(folder, csv_of(training, with_eval)), {"--replay", "--epoch-steps", "50", "--json"}));
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const Json answer = ended.json();
    const Json& policies = answer["policies"];
    double oracle = policies["oracle"]["cil"];
    for (const char* name : {"epoch", "fixed", "greedy", "optimal", "online", "oracle"}) {
      ASSERT_TRUE(policies[name].is_object()) << name << ended.out;
      const Json& publishes = policies[name]["publishes"];
      EXPECT_EQ(policies[name]["cil"], summed(with_eval ? training.eval_losses : training.losses, publishes)) << name;
      EXPECT_EQ(policies[name]["stall_ms"], 12.5 * static_cast<double>(publishes.size())) << name;
      EXPECT_LE(oracle, policies[name]["cil"].get<double>()) << name;
    }
    EXPECT_EQ(policies["epoch"]["publishes"], (Json{1000, 1500, 2000, 2500, 3000, 3500, 4000}));
    EXPECT_TRUE(answer["curve"]["family"].is_string());
    EXPECT_TRUE(answer["curve"]["parameters"].is_object());
  }
}

TEST(Plan, ThatDecidesOnEvalLossSeesNoOther) {
  TemporaryFolder folder;
  const Training training = random_training();
  Training evaluated = training;
  evaluated.losses = training.eval_losses;
  const std::vector<std::string> decide = {"--replay", "--json", "--decide-on", "eval_loss"};
  const Json both = run(line(written(folder, csv_of(training, true)), decide)).json()["policies"];
  const Json alone =
      run(line(written(folder, csv_of(evaluated, false), "alone.csv"), {"--replay", "--json"})).json()["policies"];
  for (const char* name : {"fixed", "greedy", "optimal", "online", "oracle"}) {
    ASSERT_TRUE(both[name].is_object()) << name;
    EXPECT_EQ(both[name]["publishes"], alone[name]["publishes"]) << name;
    EXPECT_EQ(both[name]["cil"], alone[name]["cil"]) << name;
  }
  const Ended without = run(line(written(folder, csv_of(training, false), "without.csv"), decide));
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("has no column eval_loss"));
  const Ended unplayed = run(line(written(folder, csv_of(training, true)), {"--decide-on", "eval_loss"}));
  EXPECT_NE(unplayed.exit_code, 0);
  EXPECT_THAT(unplayed.err, HasSubstr("--replay"));
}

TEST(Plan, OneRowIsOneStepWhateverItsStepSays) {
  TemporaryFolder folder;
  const Training training = random_training();
  std::string restarted = "step,loss\n";
  for (std::size_t i = 0; i < training.losses.size(); ++i) restarted += format("{},{}\n", i % 37, training.losses[i]);
  const Ended plain = run(line(written(folder, csv_of(training, false)), {"--replay", "--json"}));
  const Ended ended = run(line(written(folder, restarted, "restarted.csv"), {"--replay", "--json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* name : {"fixed", "greedy", "optimal", "online", "oracle"}) {
    EXPECT_EQ(ended.json()["policies"][name]["cil"], plain.json()["policies"][name]["cil"]) << name;
  }
}

TEST(Plan, WithoutEpochsThereIsNoEpochPolicy) {
  TemporaryFolder folder;
  const Ended ended = run(line(written(folder, csv_of(random_training(), false)), {"--replay", "--json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_TRUE(ended.json()["policies"]["epoch"].is_null());
}

TEST(Plan, WhatComesLaterChangesNoDecision) {
  TemporaryFolder folder;
  const Training training = random_training();
  const Json before = run(line(written(folder, csv_of(training, true)), {"--replay", "--json"})).json()["policies"];
  Training changed = training;
  constexpr std::size_t kKept = 200;
  for (std::size_t i = kKept; i < kRows; ++i) changed.losses[i] = 77;
  for (double& loss : changed.eval_losses) loss = 5 - loss;
  const Json after = run(line(written(folder, csv_of(changed, true)), {"--replay", "--json"})).json()["policies"];
  for (const char* name : {"fixed", "greedy", "optimal"}) {
    EXPECT_EQ(before[name]["publishes"], after[name]["publishes"]) << name;
  }
  const auto early = [](const Json& publishes) {
    std::vector<long> steps;
    for (const Json& step : publishes) {
      if (step <= static_cast<long>(kKept) * 10) steps.push_back(step);
    }
    return steps;
  };
  EXPECT_EQ(early(before["online"]["publishes"]), early(after["online"]["publishes"]));
  EXPECT_NE(before["oracle"]["publishes"], after["oracle"]["publishes"]);
}

TEST(Plan, PeopleGetATableAPictureAndTheSchedule) {
  TemporaryFolder folder;
  const std::string file = written(folder, csv_of(random_training(), false));
  const Ended ended = run(line(file, {"--epoch-steps", "50", "--steps", "400"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* part :
       {"curve ", "90 %", "publish |", "epoch", "fixed, every", "greedy", "optimal", "publish after steps"}) {
    EXPECT_THAT(ended.out, HasSubstr(part));
  }
  EXPECT_THAT(ended.out, testing::Not(HasSubstr("oracle")));
}

/// "a = 1.5, b = 2; x" as a map.
std::map<std::string, double> parameters_in(const std::string& text) {
  std::map<std::string, double> parameters;
  for (std::size_t at = text.find(" = "); at != std::string::npos; at = text.find(" = ", at + 1)) {
    const std::size_t name = text.find_last_of(" ,", at - 1) + 1;
    parameters[text.substr(name, at - name)] = std::stod(text.substr(at + 3));
  }
  return parameters;
}

TEST(Plan, ThePrintedParametersAreTheWholeParameters) {
  TemporaryFolder folder;
  const std::string file = written(folder, csv_of(random_training(), false));
  const Ended ended = run(line(file, {"--steps", "400"}));
  const Json answer = run(line(file, {"--steps", "400", "--json"})).json();
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::size_t begin = ended.out.find(" with ");
  const std::string text = ended.out.substr(begin, ended.out.find("; x is the row") - begin);
  const auto printed = parameters_in(text);
  const Json& parameters = answer["curve"]["parameters"];
  ASSERT_EQ(printed.size(), parameters.size()) << text;
  for (const auto& [name, value] : printed) EXPECT_EQ(value, parameters[name].get<double>()) << name;
  EXPECT_THAT(ended.out, HasSubstr("\nforecast "));
  EXPECT_THAT(ended.out, HasSubstr("- " + answer["curve"]["family"].get<std::string>() + " alone"));
}

TEST(Plan, WhereOracleIsLuckyItIsTold) {
  TemporaryFolder folder;
  std::mt19937 random(20260731);
  const auto rows = [&](double noise, bool with_eval) {
    std::string text = with_eval ? "step,loss,eval_loss\n" : "step,loss\n";
    for (int row = 1; row <= kRows; ++row) {
      const double trend = 1 + 1 / std::sqrt(row);
      text += format("{},{}", row, trend + noise * std::normal_distribution<>(0, 1)(random));
      text += with_eval ? format(",{}\n", trend) : "\n";
    }
    return run(line(written(folder, text), {"--replay", "--json"}));
  };
  EXPECT_THAT(rows(0.05, false).err, HasSubstr("oracle picks lucky rows"));
  EXPECT_EQ(rows(0, false).err, "");
  EXPECT_EQ(rows(0.05, true).err, "");
}

TEST(Plan, ACurveThatCannotBeFittedIsTold) {
  TemporaryFolder folder;
  std::string text = "step,loss\n";
  for (int row = 1; row <= kRows; ++row) text += format("{},0.5\n", row);
  const Ended ended = run(line(written(folder, text), {"--replay", "--json"}));
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.err, HasSubstr("nothing to plan with"));
  EXPECT_EQ(ended.json()["policies"]["fixed"]["publishes"], ended.json()["policies"]["optimal"]["publishes"]);
  EXPECT_EQ(ended.json()["policies"]["oracle"]["publishes"], Json::array());
}

TEST(Plan, BadLinesAreNamed) {
  struct Bad {
    std::string text;
    std::string said;
  };
  const std::string header = "step,loss,eval_loss\n";
  const std::vector<Bad> files{
      {"", "no header"},
      {"# only a comment\n", "no header"},
      {header, "no rows"},
      {"1,2\n2,3\n", "line 1: the header has no column step"},
      {"step,eval_loss\n1,2\n", "line 1: the header has no column loss"},
      {"step,loss,loss\n1,2,3\n", "line 1: two columns are named loss"},
      {header + "1,2\n", "line 2: 2 fields, the header has 3"},
      {header + "1,2,3,4\n", "line 2: 4 fields"},
      {header + "1,2,3\nx,2,3\n", "line 3: step x: not a whole number"},
      {header + "1.5,2,3\n", "line 2: step 1.5: not a whole number"},
      {header + "1,two,3\n", "line 2: loss two: not a number"},
      {header + "1,2,\n", "line 2: eval_loss is empty: with that column every row needs one"},
      {header + "1,2,nan\n", "line 2: eval_loss nan: not finite"},
      {header + "1,2,-inf\n", "line 2: eval_loss -inf: not finite"},
      {"step,loss\n1,2\n\n3,inf\n", "line 3: empty, but rows follow"},
      {"step,loss\n1,2\n# fine\n3,inf\n", "line 4: loss inf: not finite"},
      {"step,loss\n1,\n", "line 2: loss"},
      {header + "1,2\x01,3\n", "line 2: loss 2?: not a number"},
      {header + std::string(70'000, '1') + ",2,3\n", "line 2: longer than"},
      {header + "1,2,3\n2,2,3\n", "2 rows, at least 60 are needed"},
  };
  TemporaryFolder folder;
  for (const Bad& bad : files) {
    const Ended ended = run(line(written(folder, bad.text)));
    EXPECT_EQ(ended.exit_code, 1) << bad.said << ended.out;
    EXPECT_THAT(ended.err, HasSubstr(bad.said));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_EQ(run(line(folder / "none.csv")).exit_code, 3);
  const Ended ended = run(line(folder / "."));
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("Is a directory"));
}

TEST(Plan, MissingLossesBesideMeasuredOnesAreTaken) {
  TemporaryFolder folder;
  std::string text = "\xEF\xBB\xBF\"step\", loss ,other,eval_loss\r\n";
  for (int row = 1; row <= kRows; ++row) {
    const char* hole = row % 7 == 0 ? "nan" : row % 11 == 0 ? "" : row % 13 == 0 ? "inf" : nullptr;
    const double loss = 0.25 + 2 * std::pow(row, -0.4);
    text += format("{},{},x,{}\r\n", row, hole != nullptr ? hole : format("{:.6f}", loss), loss);
  }
  const Ended ended = run(line(written(folder, text + "\n"), {"--replay", "--json"}));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("column other is passed over"));
  EXPECT_THAT(ended.err, HasSubstr("infinite losses are taken as missing"));
}

TEST(Plan, AWarmUpWithoutLossesHasTheFallbackSchedule) {
  TemporaryFolder folder;
  std::string text = "step,loss,\"note, quoted\",eval_loss\n";
  for (int row = 1; row <= kRows; ++row) text += format("{},nan,\"a, b\",{}\n", row, 0.25 + 2 * std::pow(row, -0.4));
  const std::string file = written(folder, text);
  const Ended ended = run(line(file, {"--replay", "--json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("no loss of the warm-up is known"));
  const Json policies = ended.json()["policies"];
  EXPECT_FALSE(policies["fixed"]["publishes"].empty());
  EXPECT_EQ(policies["fixed"]["publishes"], policies["greedy"]["publishes"]);
  EXPECT_TRUE(policies["online"]["publishes"].empty());
  const Ended planned = run(line(file, {"--json"}));
  EXPECT_EQ(planned.exit_code, 1) << planned.out;
  EXPECT_THAT(planned.err, HasSubstr("--warmup"));
}

/// The schedules of such losses are those of the same losses in another unit.
TEST(Plan, HugeLossesArePlannedWithAndNotForgotten) {
  TemporaryFolder folder;
  constexpr int kExponent = 990;
  Training huge = random_training();
  Training small = huge;
  for (double& loss : huge.losses) loss = std::ldexp(loss, kExponent);
  for (double& loss : small.losses) loss = std::ldexp(loss, -2);  // The largest is between 2 and 4.
  const Ended ended = run(line(written(folder, csv_of(huge, false)), {"--json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("the curve is of losses times"));
  const Json expected = run(line(written(folder, csv_of(small, false), "small.csv"), {"--json"})).json();
  EXPECT_EQ(ended.json()["curve"], expected["curve"]);
  for (const char* name : {"fixed", "greedy", "optimal"}) {
    EXPECT_EQ(ended.json()["policies"][name]["publishes"], expected["policies"][name]["publishes"]) << name;
    EXPECT_EQ(ended.json()["policies"][name]["cil"].get<double>(),
              std::ldexp(expected["policies"][name]["cil"].get<double>(), kExponent + 2))
        << name;
  }
}

TEST(Plan, WrongOptionsAreNamed) {
  TemporaryFolder folder;
  const std::string file = written(folder, csv_of(random_training(), false));
  const auto with = [&](const std::string& option, const std::string& value) {
    std::vector<std::string> words = line(file);
    const auto found = std::find(words.begin(), words.end(), option);
    if (found == words.end()) {
      words.insert(words.end(), {option, value});
    } else {
      *(found + 1) = value;
    }
    return run(words);
  };
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{{"--step-ms", "0"},
                                                                                      {"--step-ms", "-1"},
                                                                                      {"--step-ms", "0.0000001"},
                                                                                      {"--step-ms", "x"},
                                                                                      {"--stall-ms", "-0.5"},
                                                                                      {"--delivery-ms", "nan"},
                                                                                      {"--infer-ms", "0"},
                                                                                      {"--infer-ms", "1e999"},
                                                                                      {"--warmup", "0"},
                                                                                      {"--warmup", "-3"},
                                                                                      {"--warmup", "1.5"},
                                                                                      {"--inferences", "0"},
                                                                                      {"--epoch-steps", "0"},
                                                                                      {"--steps", "60"},
                                                                                      {"--steps", "12"}}) {
    const Ended ended = with(option, value);
    EXPECT_EQ(ended.exit_code, 2) << option << " " << value << ended.out;
    EXPECT_THAT(ended.err, HasSubstr(option));
  }
  EXPECT_THAT(with("--warmup", "0").err, HasSubstr("must be a whole number from 1"));
  EXPECT_EQ(with("--warmup", "060").out, with("--warmup", "60").out) << "a leading zero means nothing";
  const Ended late = with("--warmup", "400");
  EXPECT_EQ(late.exit_code, 0) << late.err;
  const Ended beyond = run(line(file, {"--replay", "--steps", "399"}));
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("--steps 399"));
  std::vector<std::string> whole = line(file, {"--replay"});
  whole[3] = "400";
  const Ended nothing_left = run(whole);
  EXPECT_EQ(nothing_left.exit_code, 1);
  EXPECT_THAT(nothing_left.err, HasSubstr("--warmup 400"));
  EXPECT_THAT(with("--infer-ms", "1e10").err, HasSubstr("inferences"));
  EXPECT_EQ(with("--stall-ms", "0").exit_code, 0) << "a stall of nothing is a stall that can be had";
}

}  // namespace
}  // namespace freshet::cli_test
