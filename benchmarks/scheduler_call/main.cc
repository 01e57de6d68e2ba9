// SPDX-License-Identifier: Apache-2.0
/// What a training loop pays for asking: the time of one Scheduler::observe() with the schedule `online`, at the rows
/// between decisions and at those where one is weighed.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <iostream>
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
  bool quick = false;
  bool json = false;
  const CommandLine line{.name = "scheduler_call",
                         .about = "The time of one call of the scheduler",
                         .quick = &quick,
                         .json = &json,
                         .add_options = {}};
  return run_benchmark(argc, argv, line, [&quick, &json]() -> freshet::Status {
    Report report("scheduler_call");
    FRESHET_TRY(measure(quick, report));
    if (!json) std::cout << report.table();
    std::cout << report.json() << '\n';
    return {};
  });
}
