// SPDX-License-Identifier: Apache-2.0
#include "scheduler/scheduler_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace freshet {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A training loop on a clock of its own: a step takes 10 ms, a publish what it is told.
class Loop {
 public:
  explicit Loop(const SchedulerOptions& options) : machine_(*ScheduleMachine::make(options)) {}

  void start() { machine_.published(now_, milliseconds(500)); }
  void step(double loss, bool publishes = true, double eval_loss = std::nan("")) {
    now_ += milliseconds(10);
    ++step_;
    const bool due = machine_.observe({.step = step_, .loss = loss, .eval_loss = eval_loss, .at = now_});
    if (Policy::Work work = machine_.take_work()) {
      works_at_once ? work()() : works_.push_back(std::move(work));
    }
    if (!due) return;
    due_.push_back(step_);
    if (!publishes) return;
    now_ += stall;
    machine_.published(now_, stall);
  }
  void steps(int count) {
    for (int i = 0; i < count; ++i) step(2 * std::exp(-static_cast<double>(step_ + 1) / 300) + 0.3);
  }

  ScheduleMachine& machine() { return machine_; }
  SchedulerDecision last() const { return machine_.last_decision(); }
  const std::vector<std::uint64_t>& due() const { return due_; }

  Duration stall = milliseconds(5);
  bool works_at_once = true;  ///< Else what the machine asks for is kept in works().
  std::vector<Policy::Work>& works() { return works_; }

 private:
  ScheduleMachine machine_;
  Time now_{seconds(100)};
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> due_;
  std::vector<Policy::Work> works_;
};

TEST(ScheduleMachine, MeasuresItsTimesAndDoesNotCountTheStallTwice) {
  Loop loop({.schedule = "every:10"});
  loop.start();
  loop.steps(100);
  loop.machine().delivered(milliseconds(30));
  loop.machine().persisted(milliseconds(40));
  const SchedulerDecision last = loop.last();
  EXPECT_EQ(last.step_time, milliseconds(10));
  EXPECT_EQ(last.stall_time, milliseconds(5)) << "the initial version's stall is not one";
  EXPECT_EQ(last.delivery_time, milliseconds(30));
  EXPECT_EQ(last.persist_time, milliseconds(40));
  EXPECT_EQ(last.publishes, 11U);
  EXPECT_EQ(last.last_publish_step, 100U);
  EXPECT_NEAR(last.overhead_percent, 5, 0.1);
}

TEST(ScheduleMachine, OneHiccupDoesNotChangeWhatAStallUsuallyTakes) {
  Loop loop({.schedule = "every:10"});
  loop.start();
  loop.steps(50);
  loop.stall = seconds(3);
  loop.steps(10);
  loop.stall = milliseconds(5);
  loop.steps(10);
  EXPECT_EQ(loop.last().stall_time, milliseconds(5));
}

TEST(ScheduleMachine, OnlinePublishesOftenEarlyAndSeldomLate) {
  Loop loop({.limits = {.serving = seconds(30), .requests_per_second = 100}});
  loop.start();
  for (int i = 1; i <= 1200; ++i) loop.step(3 / std::sqrt(1 + i / 5.0));
  const auto early = std::count_if(loop.due().begin(), loop.due().end(), [](std::uint64_t s) { return s <= 200; });
  const auto late = std::count_if(loop.due().begin(), loop.due().end(), [](std::uint64_t s) { return s > 1000; });
  EXPECT_GT(late, 0);
  EXPECT_GT(early, late);
}

TEST(ScheduleMachine, OnlinePublishesSeldomerWhenStallsAreDear) {
  Loop cheap({.limits = {.serving = seconds(30), .requests_per_second = 100}});
  Loop dear({.limits = {.serving = seconds(30), .requests_per_second = 100}});
  dear.stall = milliseconds(500);
  for (Loop* loop : {&cheap, &dear}) {
    loop->start();
    loop->steps(1200);
  }
  EXPECT_GT(dear.due().size(), 2U);
  EXPECT_GT(cheap.due().size(), 3 * dear.due().size());
}

TEST(ScheduleMachine, WithoutAnInitialVersionTheFirstIsDueAfterTheWarmup) {
  Loop loop({.warmup_steps = 50});
  loop.steps(60);
  ASSERT_FALSE(loop.due().empty());
  EXPECT_EQ(loop.due().front(), 50U);
}

TEST(ScheduleMachine, NothingIsWeighedAgainstAVersionThatNobodyServes) {
  Loop loop({.warmup_steps = 300});
  loop.steps(299);
  EXPECT_TRUE(loop.due().empty());
  EXPECT_EQ(loop.last().reason, "the warm-up is not over");
}

TEST(ScheduleMachine, WhatWasPutOffStaysDue) {
  for (const char* schedule : {"every:10", "epoch", "fixed"}) {
    Loop loop({.schedule = schedule, .epoch_steps = 10, .warmup_steps = 10, .limits = {.serving = seconds(60)}});
    loop.start();
    for (int i = 1; i <= 9; ++i) loop.step(1.0 / i);
    ASSERT_TRUE(loop.due().empty()) << schedule;
    loop.step(0.1, false);
    ASSERT_EQ(loop.due().size(), 1U) << schedule;
    loop.step(0.1, true);
    loop.step(0.1, true);
    EXPECT_EQ(loop.due(), (std::vector<std::uint64_t>{10, 11})) << schedule;
  }
}

TEST(ScheduleMachine, PlansOnceFromTheWarmup) {
  for (const char* schedule : {"fixed", "greedy", "optimal"}) {
    Loop loop({.schedule = schedule, .warmup_steps = 100, .limits = {.serving = seconds(10)}});
    loop.start();
    loop.steps(1100);
    EXPECT_GT(loop.due().size(), 2U) << schedule;
    EXPECT_EQ(loop.due().front(), 100U) << schedule;
    EXPECT_FALSE(loop.last().explanation.curve.empty()) << schedule;
    EXPECT_EQ(loop.last().explanation.step, 101U) << "the version before told what a stall costs";
  }
}

TEST(ScheduleMachine, GoesOnWhileItsPlanIsMade) {
  for (const char* schedule : {"fixed", "greedy", "optimal"}) {
    const SchedulerOptions options{.schedule = schedule, .warmup_steps = 50, .limits = {.steps = 1000}};
    Loop prompt(options);
    prompt.start();
    prompt.steps(400);
    Loop late(options);
    late.works_at_once = false;
    late.start();
    late.steps(200);
    ASSERT_EQ(late.works().size(), 1U) << schedule;
    EXPECT_EQ(late.last().reason, "the plan is being made");
    EXPECT_EQ(late.last().explanation.note, "the plan is being made");
    EXPECT_EQ(late.due(), std::vector<std::uint64_t>{50}) << "nothing but the first version";
    // A thread of its own, while the loop goes on.
    std::function<void()> hand_over;
    std::thread thread([&] { hand_over = late.works()[0](); });
    late.steps(20);
    thread.join();
    EXPECT_EQ(late.due().size(), 1U) << "a plan that is made and not handed over changes nothing";
    hand_over();
    late.steps(180);
    EXPECT_EQ(late.works().size(), 1U) << "one plan for a life";
    EXPECT_EQ(late.last().explanation.note, prompt.last().explanation.note);
    EXPECT_EQ(late.last().explanation.curve, prompt.last().explanation.curve) << "from the same losses";
    // What was missed is made up for once; from then on both publish alike.
    const auto after = [](const std::vector<std::uint64_t>& steps, std::uint64_t step) {
      return std::vector<std::uint64_t>(std::upper_bound(steps.begin(), steps.end(), step), steps.end());
    };
    ASSERT_GT(prompt.due().size(), 2U) << schedule;
    ASSERT_GT(late.due().size(), 1U) << schedule;
    const bool missed_some = prompt.due()[1] <= 221;
    EXPECT_EQ(late.due()[1], missed_some ? 221U : prompt.due()[1]) << schedule;
    EXPECT_EQ(after(late.due(), 221), after(prompt.due(), 221)) << schedule;
  }
}

/// Overfits from step 1000 on: the training's loss falls, the evaluation's rises.
double training_loss(int step) { return 2 * std::exp(-static_cast<double>(step) / 800); }
double evaluation_loss(int step) { return 3 + std::fabs(1000.0 - static_cast<double>(step)) / 500; }

TEST(ScheduleMachine, EvaluationsDecideWhereThereAreSome) {
  for (const int each : {1, 25}) {
    Loop told({.schedule = "online", .limits = {.steps = 3000}});
    Loop untold({.schedule = "online", .limits = {.steps = 3000}});
    for (Loop* loop : {&told, &untold}) loop->start();
    for (int step = 1; step <= 3000; ++step) {
      const bool evaluates = step > 200 && step % each == 0;
      told.step(training_loss(step), true, evaluates ? evaluation_loss(step) : std::nan(""));
      untold.step(training_loss(step));
    }
    const auto between = [](const Loop& loop, std::uint64_t from, std::uint64_t to) {
      return std::ranges::count_if(loop.due(), [&](std::uint64_t step) { return step > from && step <= to; });
    };
    // A turn is believed when some evaluations have shown it.
    const std::uint64_t turned = 1100 + 8 * static_cast<std::uint64_t>(each);
    EXPECT_GT(between(told, 200, 1000), 3) << each;
    EXPECT_GT(between(untold, turned, 3000), 0) << each;
    EXPECT_EQ(between(told, turned, 3000), 0) << each << ": later versions are worse than the served one";
    for (const std::uint64_t step : told.due()) {
      EXPECT_TRUE(step <= 400 || step % static_cast<std::uint64_t>(each) == 0) << "@" << step << " was not evaluated";
    }
  }
}

/// Of a run whose loss falls all the time, evaluated where `evaluates` says so.
std::vector<std::uint64_t> publishes_of(const std::function<bool(int)>& evaluates) {
  Loop loop({.schedule = "online", .limits = {.steps = 3000}});
  loop.start();
  for (int step = 1; step <= 3000; ++step) {
    const double loss = 3 / std::sqrt(1 + step / 50.0);
    loop.step(loss, true, evaluates(step) ? 1.02 * loss : std::nan(""));
  }
  return loop.due();
}

TEST(ScheduleMachine, TrainingLossesDecideUntilThereAreEightEvaluations) {
  const auto none = publishes_of([](int) { return false; });
  ASSERT_GT(none.size(), 10U);
  EXPECT_EQ(publishes_of([](int step) { return step == 1; }), none);
  EXPECT_EQ(publishes_of([](int step) { return step <= 700 && step % 100 == 0; }), none) << "seven evaluations";
  const auto often = publishes_of([](int step) { return step % 100 == 0; });
  const auto until = [](std::vector<std::uint64_t> due, std::uint64_t step) {
    std::erase_if(due, [&](std::uint64_t one) { return one >= step; });
    return due;
  };
  EXPECT_EQ(until(often, 800), until(none, 800));
  EXPECT_GT(often.size(), until(often, 800).size());
  for (const std::uint64_t step : often) EXPECT_TRUE(step < 800 || step % 100 == 0) << step;
}

TEST(ScheduleMachine, TrainingLossesDecideAgainWhenNoEvaluationComes) {
  const auto due = publishes_of([](int step) { return step % 20 == 0 && (step <= 1000 || step >= 2000); });
  const auto between = [&](std::uint64_t from, std::uint64_t to) {
    return std::ranges::count_if(due, [&](std::uint64_t step) { return step > from && step <= to; });
  };
  EXPECT_EQ(between(1000, 1080), 0);
  EXPECT_GT(between(1080, 1999), 1);
  EXPECT_GT(between(1999, 3000), 1);
  for (const std::uint64_t step : due) {
    EXPECT_TRUE(step < 160 || (step > 1080 && step < 2000) || step % 20 == 0) << step;
  }
}

TEST(ScheduleMachine, APlanGoesByTrainingLossesWhereEvaluationsAreFew) {
  const SchedulerOptions options{.schedule = "optimal", .warmup_steps = 200, .limits = {.steps = 2000}};
  Loop evaluated(options);
  Loop trained(options);
  for (Loop* loop : {&evaluated, &trained}) loop->start();
  for (int step = 1; step <= 400; ++step) {
    const double loss = 2 * std::exp(-static_cast<double>(step) / 300) + 0.3;
    evaluated.step(loss, true, step == 100 || step > 210 ? 7 : std::nan(""));
    trained.step(loss);
  }
  EXPECT_FALSE(trained.last().explanation.curve.empty());
  EXPECT_EQ(evaluated.last().explanation.curve, trained.last().explanation.curve);
  EXPECT_EQ(evaluated.due(), trained.due());
}

/// Another scale than the training's, so that none of its losses may be compared with one.
TEST(ScheduleMachine, NoTrainingLossIsComparedWithAnEvaluation) {
  for (const double scale : {0.01, 100.0}) {
    Loop loop({.schedule = "online", .limits = {.steps = 3000}});
    loop.start();
    for (int step = 1; step <= 2000; ++step) {
      const double loss = 2 * std::exp(-static_cast<double>(step) / 300) + 0.3;
      loop.step(loss, true, step > 300 ? scale * loss : std::nan(""));
    }
    const auto later = std::ranges::count_if(loop.due(), [](std::uint64_t step) { return step > 320 && step <= 1000; });
    EXPECT_GT(later, 3) << scale;
  }
}

TEST(ScheduleMachine, APlanIsMadeFromEvaluationsWhereThereAreSome) {
  const SchedulerOptions options{.schedule = "optimal", .warmup_steps = 200, .limits = {.steps = 2000}};
  Loop evaluated(options);
  Loop trained(options);
  for (Loop* loop : {&evaluated, &trained}) loop->start();
  for (int step = 1; step <= 400; ++step) {
    const double loss = 2 * std::exp(-static_cast<double>(step) / 300) + 0.3;
    evaluated.step(7, true, step > 40 ? loss : std::nan(""));
    trained.step(step > 40 ? loss : std::nan(""));
  }
  EXPECT_FALSE(trained.last().explanation.curve.empty());
  EXPECT_EQ(evaluated.last().explanation.curve, trained.last().explanation.curve);
  EXPECT_EQ(evaluated.due(), trained.due());
}

TEST(ScheduleMachine, APlanKnowsWhatAStallCosts) {
  const SchedulerOptions options{
      .schedule = "fixed",
      .warmup_steps = 100,
      .limits = {.serving = seconds(20), .requests_per_second = 100, .overhead_percent = 1e6}};
  Loop cheap(options);
  Loop dear(options);
  dear.stall = milliseconds(200);
  for (Loop* loop : {&cheap, &dear}) {
    loop->start();
    loop->steps(1100);
  }
  EXPECT_GT(dear.due().size(), 1U);
  EXPECT_GT(cheap.due().size(), 3 * dear.due().size());
}

TEST(ScheduleMachine, APlanReachesToTheTrainingsEnd) {
  for (const char* schedule : {"fixed", "greedy", "optimal"}) {
    Loop loop({.schedule = schedule, .warmup_steps = 100, .limits = {.steps = 2000}});
    loop.start();
    loop.steps(2000);
    ASSERT_GT(loop.due().size(), 5U) << schedule;
    EXPECT_GT(loop.due().back(), 1000U) << schedule;
  }
}

TEST(ScheduleMachine, NoHorizonIsTooLongToPlanFor) {
  for (const char* schedule : {"fixed", "greedy", "optimal"}) {
    Loop loop(
        {.schedule = schedule, .limits = {.serving = std::chrono::hours(24 * 365 * 20), .requests_per_second = 1e9}});
    loop.start();
    loop.steps(200);
    EXPECT_EQ(loop.last().explanation.note, "") << schedule;
    EXPECT_GT(loop.due().size(), 5U) << schedule;
  }
}

TEST(ScheduleMachine, AfterThePlansEndItsLongestIntervalGoesOn) {
  Loop loop({.schedule = "fixed", .warmup_steps = 100});
  loop.start();
  loop.steps(3000);
  ASSERT_GT(loop.due().size(), 5U);
  const std::uint64_t interval = loop.due()[2] - loop.due()[1];
  for (std::size_t i = 2; i < loop.due().size(); ++i) EXPECT_EQ(loop.due()[i] - loop.due()[i - 1], interval);
  EXPECT_GT(loop.due().back(), 3000 - interval);

  Loop optimal({.schedule = "optimal", .warmup_steps = 100, .limits = {.overhead_percent = 1000}});
  optimal.stall = milliseconds(50);
  optimal.start();
  optimal.steps(3000);
  EXPECT_GT(optimal.due().back(), 2500U);
  std::uint64_t longest = 0;
  for (std::size_t i = 1; i < optimal.due().size(); ++i) {
    // The plan is made at step 101, after the version before it, and ends before step 300.
    const std::uint64_t gap = optimal.due()[i] - std::max<std::uint64_t>(optimal.due()[i - 1], 101);
    if (optimal.due()[i] <= 290) longest = std::max(longest, gap);
    if (optimal.due()[i - 1] > 290) {
      EXPECT_EQ(gap, longest);
    }
  }
}

TEST(ScheduleMachine, IntervalsHaveBounds) {
  Loop seldom({.limits = {.serving = seconds(30), .interval_steps_least = 70}});
  Loop often({.limits = {.serving = seconds(30), .interval_steps_most = 70}});
  for (Loop* loop : {&seldom, &often}) loop->start();
  seldom.steps(1000);
  for (int i = 0; i < 1000; ++i) often.step(1.0);
  ASSERT_GT(seldom.due().size(), 3U);
  for (std::size_t i = 1; i < seldom.due().size(); ++i) EXPECT_GE(seldom.due()[i] - seldom.due()[i - 1], 70U);
  ASSERT_EQ(often.due().size(), 14U);
  for (std::size_t i = 1; i < often.due().size(); ++i) EXPECT_EQ(often.due()[i] - often.due()[i - 1], 70U);
}

TEST(ScheduleMachine, OverheadStaysBelowItsLimit) {
  Loop loop({.schedule = "every:1", .limits = {.overhead_percent = 10}});
  loop.start();
  loop.steps(500);
  EXPECT_LE(loop.last().overhead_percent, 10);
  EXPECT_GT(loop.last().overhead_percent, 9);
  EXPECT_EQ(loop.last().reason, "stalls would take more than their share");
}

TEST(ScheduleMachine, NoPublishComesFasterThanTheRepositoryTakesIt) {
  Loop loop({.schedule = "every:1"});
  loop.start();
  loop.machine().persisted(milliseconds(200));
  loop.steps(200);
  ASSERT_GT(loop.due().size(), 5U);
  for (std::size_t i = 1; i < loop.due().size(); ++i) EXPECT_GE(loop.due()[i] - loop.due()[i - 1], 20U);
}

TEST(ScheduleMachine, NothingIsPublishedWhenNobodyAsksAnyMore) {
  Loop loop({.limits = {.inferences = 200, .requests_per_second = 100}});
  loop.start();
  loop.steps(1000);
  ASSERT_FALSE(loop.due().empty());
  EXPECT_LE(loop.due().back(), 201U) << "the last request comes after two seconds";
}

TEST(ScheduleMachine, ExplainsItself) {
  Loop loop({.limits = {.serving = seconds(30), .requests_per_second = 100}});
  EXPECT_EQ(loop.last().reason, "nothing was observed yet");
  loop.start();
  loop.steps(400);
  const SchedulerDecision last = loop.last();
  EXPECT_EQ(last.schedule, "online");
  EXPECT_EQ(last.step, 400U);
  EXPECT_GT(last.explanation.step, 300U);
  EXPECT_LE(last.explanation.step, 400U);
  EXPECT_NE(last.explanation.curve.find("x/"), std::string::npos) << last.explanation.curve;
  EXPECT_NEAR(last.explanation.present_loss, 2 * std::exp(-4.0 / 3) + 0.3, 0.05);
  EXPECT_GT(last.explanation.served_loss, last.explanation.present_loss);
  EXPECT_GT(last.explanation.gain, 0);
  EXPECT_GT(last.explanation.stall_cost, 0);
  EXPECT_NE(last.text().find("step 400: go on (online): "), std::string::npos) << last.text();
}

TEST(ScheduleMachine, LossesThatAreMissingOrJumpAreSurvived) {
  Loop loop({.limits = {.serving = seconds(30)}});
  loop.start();
  for (int i = 0; i < 400; ++i) {
    loop.step(i % 5 == 0 ? std::nan("") : i % 7 == 0 ? INFINITY : i % 11 == 0 ? 1e300 : 1 + std::exp(-i / 100.0));
  }
  EXPECT_GT(loop.due().size(), 2U);
  for (int i = 0; i < 100; ++i) loop.step(std::nan(""));
}

TEST(ScheduleMachine, StepsThatJumpBackAreSurvived) {
  for (const char* schedule : {"online", "every:10", "epoch", "fixed"}) {
    auto machine = *ScheduleMachine::make({.schedule = schedule, .epoch_steps = 7, .warmup_steps = 5});
    Time now{};
    int due = 0;
    for (const std::uint64_t start : {1000U, 1U, 500U}) {
      for (std::uint64_t step = start; step < start + 50; ++step) {
        now -= milliseconds(1);  // And so does the clock.
        if (!machine.observe({.step = step, .loss = 1.0 / static_cast<double>(step), .at = now})) continue;
        machine.published(now, milliseconds(-3));
        ++due;
      }
    }
    EXPECT_GT(due, 0) << schedule;
  }
}

TEST(ScheduleMachine, BadOptionsAreRefusedByName) {
  const auto message = [](const SchedulerOptions& options) {
    const auto machine = ScheduleMachine::make(options);
    return machine ? std::string() : machine.error().message();
  };
  EXPECT_NE(message({.schedule = "sometimes"}).find("sometimes"), std::string::npos);
  EXPECT_NE(message({.limits = {.inferences = 5}}).find("requests_per_second"), std::string::npos);
  EXPECT_NE(message({.limits = {.serving = seconds(-1)}}).find("future"), std::string::npos);
  EXPECT_NE(message({.limits = {.requests_per_second = NAN}}).find("requests_per_second"), std::string::npos);
  EXPECT_NE(message({.limits = {.overhead_percent = -1}}).find("overhead_percent"), std::string::npos);
  EXPECT_NE(message({.limits = {.interval_steps_least = 9, .interval_steps_most = 3}}).find("interval"),
            std::string::npos);
  EXPECT_NE(message({.schedule = "greedy", .warmup_steps = 0}).find("warm-up"), std::string::npos);
}

}  // namespace
}  // namespace freshet
