// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/checkpoint/waste.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "core/base/format.h"
#include "scheduler/policy.h"

namespace freshet::benchmarks {
namespace {

struct Machine {
  const char* name;
  double step_s = 1;
  double stall_s = 1;  ///< Of a checkpoint.
  double mtbf_s = 1;
  double restart_s = 0;
};

/// Computes in segments of so many steps with a checkpoint behind each, until the machine failed so often; the share of
/// the time that is lost. A failure takes what came after the last checkpoint, and a restart, in which the machine may
/// fail again. `next` gives a segment's steps, after the step of the last checkpoint.
double lost_share(const Machine& machine, std::uint64_t failures, std::uint64_t seed,
                  const std::function<std::uint64_t(std::uint64_t safe)>& next) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> until_failure(1 / machine.mtbf_s);
  double took_s = 0;
  std::uint64_t safe = 0;
  for (std::uint64_t failed = 0; failed < failures;) {
    const std::uint64_t steps = next(safe);
    const double wanted_s = static_cast<double>(steps) * machine.step_s + machine.stall_s;
    double left_s = until_failure(random);
    if (left_s >= wanted_s) {
      took_s += wanted_s;
      safe += steps;
      continue;
    }
    took_s += left_s;
    do {
      ++failed;
      left_s = until_failure(random);
      took_s += std::min(left_s, machine.restart_s);
    } while (left_s < machine.restart_s);
  }
  return 1 - static_cast<double>(safe) * machine.step_s / took_s;
}

/// What the schedule loses, with the measured step and stall that its scheduler would tell it.
Result<double> share_lost_by_schedule(const Machine& machine, std::uint64_t failures, std::uint64_t seed) {
  FRESHET_ASSIGN(const auto policy, parse_policy(format("failures:{}:{}", machine.mtbf_s, machine.restart_s)));
  Situation situation;
  situation.step = machine.step_s;
  situation.stall = machine.stall_s;
  std::uint64_t told = 0;
  return lost_share(machine, failures, seed, [&](std::uint64_t safe) {
    if (safe > told) policy->published({.step = safe});
    told = safe;
    std::uint64_t steps = 1;
    while (!policy->decide({.step = safe + steps}, situation).publish) ++steps;
    return steps;
  });
}

}  // namespace

Status measure_waste(const CheckpointOptions& options, Report& report) {
  const std::vector<Machine> machines = {
      {.name = "fails_every_hour", .step_s = 1, .stall_s = 2, .mtbf_s = 3600, .restart_s = 60},
      {.name = "fails_every_10_minutes", .step_s = 1, .stall_s = 5, .mtbf_s = 600, .restart_s = 30},
      {.name = "fails_every_3_hours", .step_s = 4, .stall_s = 0.3, .mtbf_s = 10'800, .restart_s = 300}};
  constexpr std::uint64_t kSeeds = 3;
  const std::uint64_t failures = options.quick ? 2'000 : 20'000;
  double worst = 1e300;
  for (const Machine& machine : machines) {
    Samples ours;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      FRESHET_ASSIGN(const double lost, share_lost_by_schedule(machine, failures, seed));
      ours.add(100 * lost);
    }
    Samples best;
    // Every number of steps that could be the best, to within a twentieth.
    for (double every = 1; every * machine.step_s < machine.mtbf_s; every = std::ceil(every * 1.05)) {
      Samples lost;
      for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const auto steps = static_cast<std::uint64_t>(every);
        lost.add(100 * lost_share(machine, failures, seed, [steps](std::uint64_t) { return steps; }));
      }
      if (best.count() == 0 || lost.sum() < best.sum()) best = lost;
    }
    report.add_row(machine.name, "schedule_failures_loses", "percent", ours);
    report.add_row(machine.name, "best_interval_loses", "percent", best);
    worst = std::min(worst, best.sum() / ours.sum());
  }
  report.set_ratio("schedule_vs_best", worst);
  return {};
}

}  // namespace freshet::benchmarks
