// SPDX-License-Identifier: Apache-2.0
/// What a training loop pays for asking: the time of one Scheduler::observe() with the schedule `online`, at the rows
/// between decisions and at those where one is weighed; and with the schedules that are planned once, at the rows
/// around the plan's making, beside what the plan takes the thread that makes it.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <random>

#include "benchmarks/common/command_line.h"
#include "benchmarks/common/report.h"
#include "core/base/format.h"
#include "scheduler/scheduler.h"

namespace freshet::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

struct Times {
  Samples between;
  Samples weighed;
  Samples rows_per_publish;
};

/// A run whose loss decays with noise; its clock is turned by hand, so that a stall can be had without waiting.
Status run(std::uint64_t rows, Duration stall, Times& times) {
  ManualClock clock;
  FRESHET_ASSIGN(const auto scheduler, Scheduler::make({.limits = {.steps = rows}, .stall_expected = stall}, clock));
  scheduler->published(stall);
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::uint64_t weighed_at = 0, publishes = 0;
  for (std::uint64_t step = 1; step <= rows; ++step) {
    const double loss = 3 * std::pow(1 + static_cast<double>(step) / 50, -0.5) * (1 + 0.1 * normal(random));
    clock.advance(std::chrono::milliseconds(10));
    const Clock::time_point before = Clock::now();
    const bool due = scheduler->observe({.step = step, .loss = loss});
    const double took = microseconds(Clock::now() - before);
    const std::uint64_t weighed = scheduler->last_decision().explanation.step;
    (weighed == weighed_at ? times.between : times.weighed).add(took);
    weighed_at = weighed;
    if (!due) continue;
    ++publishes;
    clock.advance(stall);
    scheduler->published(stall);
  }
  times.rows_per_publish.add(static_cast<double>(rows) / static_cast<double>(std::max<std::uint64_t>(publishes, 1)));
  return {};
}

/// Around the row that asks for the plan, until the plan is there and for as many rows again. A row takes a hundredth
/// of a millisecond, so that some hundred come while the plan is made.
Status plan(const std::string& schedule, std::uint64_t steps, Samples& calls, Samples& planning_ms) {
  constexpr std::uint64_t kWarmup = 1000;
  constexpr auto kRow = std::chrono::microseconds(10);
  ManualClock clock;
  FRESHET_ASSIGN(const auto scheduler,
                 Scheduler::make({.schedule = schedule, .warmup_steps = kWarmup, .limits = {.steps = steps}}, clock));
  scheduler->published(std::chrono::milliseconds(20));
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  Clock::time_point asked_at;
  std::uint64_t last = steps;
  for (std::uint64_t step = 1; step <= last; ++step) {
    const double loss = 3 * std::pow(1 + static_cast<double>(step) / 50, -0.5) * (1 + 0.1 * normal(random));
    clock.advance(std::chrono::milliseconds(10));
    const Clock::time_point before = Clock::now();
    const bool due = scheduler->observe({.step = step, .loss = loss});
    const Clock::time_point after = Clock::now();
    if (step > kWarmup) calls.add(microseconds(after - before));
    if (step == kWarmup + 1) asked_at = before;
    if (step > kWarmup && last == steps && scheduler->last_decision().explanation.note.empty()) {
      planning_ms.add(microseconds(after - asked_at) / 1e3);
      last = std::min(steps, 2 * step);
    }
    if (due) {
      clock.advance(std::chrono::milliseconds(20));
      scheduler->published(std::chrono::milliseconds(20));
    }
    while (step > kWarmup && Clock::now() < before + kRow) {
    }
  }
  if (planning_ms.count() == 0) return fail(Code::timed_out, format("{}: the plan did not come", schedule));
  return {};
}

Status measure_plans(bool quick, Report& report) {
  for (const std::string schedule : {"fixed", "greedy", "optimal"}) {
    Samples calls;
    Samples longest;
    Samples planning_ms;
    for (int round = 0; round < (quick ? 3 : 11); ++round) {
      Samples of_round;
      FRESHET_TRY(plan(schedule, 100'000, of_round, planning_ms));
      longest.add(of_round.max() / 1e3);
      calls.add(of_round);
    }
    const std::string name = schedule + ", 100,000 steps to come";
    report.add_row(name, "a call", "us", calls);
    report.add_row(name, "the longest call of a run", "ms", longest);
    report.add_row(name, "from the call that asks until the plan is there", "ms", planning_ms);
    report.set_ratio(format("plan_over_longest_call/{}", schedule), planning_ms.median() / longest.median());
  }
  return {};
}

Status measure(bool quick, Report& report) {
  const std::uint64_t rows = quick ? 20'000 : 200'000;
  for (const auto& [name, stall] : {std::pair{"stall 0.2 steps", std::chrono::milliseconds(2)},
                                    std::pair{"stall 20 steps", std::chrono::milliseconds(200)}}) {
    Times times;
    FRESHET_TRY(run(rows, stall, times));
    report.add_row(name, "between decisions", "us", times.between);
    report.add_row(name, "at a decision", "us", times.weighed);
    report.add_row(name, "rows per publish", "rows", times.rows_per_publish);
    report.set_ratio(format("microsecond_over_between/{}", name), 1 / times.between.median());
  }
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  CommonOptions options;
  return run_benchmark(
      argc, argv, {.name = "scheduler_call", .about = "The time of one call of the scheduler", .options = options},
      [&](Report& report) -> freshet::Status {
        FRESHET_TRY(measure(options.quick, report));
        return measure_plans(options.quick, report);
      });
}
