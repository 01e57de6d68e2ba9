// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the tests of all simulators do: a run for each of many seeds, in which every property must hold, and runs with
/// a broken rule, which must be noticed.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "core/base/format.h"
#include "tests/support/from_environment.h"
#include "tests/support/this_build.h"

namespace freshet::test {

/// A simulation of one seed; returns the violation, or an empty string when all properties held.
using SimulateSeed = std::function<std::string(std::uint64_t seed)>;

/// FRESHET_SIM_SEED chooses the first seed, FRESHET_SIM_RUNS the number of runs.
class Storm {
 public:
  /// With a sanitizer, which sees a wrong access in any run that makes it, a third of the runs.
  explicit Storm(std::uint64_t runs)
      : runs_(from_environment("FRESHET_SIM_RUNS", under_sanitizer() ? (runs + 2) / 3 : runs)) {}

  /// Stops at the first violation. The failure prints the seed that repeats this run alone.
  void run(const SimulateSeed& simulate) const {
    for (std::uint64_t seed = first_; seed < first_ + runs_; ++seed) {
      ASSERT_EQ(simulate(seed), "") << "repeat it with FRESHET_SIM_SEED=" << seed << " FRESHET_SIM_RUNS=1";
    }
  }
  std::uint64_t runs() const { return runs_; }
  std::string seeds() const { return format("seeds {} to {}", first_, first_ + runs_ - 1); }

 private:
  const std::uint64_t first_ = from_environment("FRESHET_SIM_SEED", 1);
  const std::uint64_t runs_;
};

/// What runs did, and more than how often they must do it, a run on average: a storm in which nothing happens would
/// prove nothing.
template <typename Outcome>
struct Happening {
  const char* name;
  std::uint64_t Outcome::*count;
  double least = -1;
};

/// A storm of so many seeds, whose sums are printed. A storm of a few seeds need not do all.
template <typename Outcome>
void expect_eventful_storm(std::uint64_t runs, const std::function<Outcome(std::uint64_t seed)>& simulate,
                           const std::vector<Happening<Outcome>>& happenings) {
  const Storm storm(runs);
  std::vector<std::uint64_t> sums(happenings.size());
  storm.run([&](std::uint64_t seed) {
    const Outcome outcome = simulate(seed);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += outcome.*happenings[i].count;
    return outcome.violation;
  });
  if (::testing::Test::HasFatalFailure()) return;
  std::cout << storm.seeds();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    std::cout << (i == 0 ? ": " : ", ") << sums[i] << " " << happenings[i].name;
    if (storm.runs() * 3 < runs) continue;
    EXPECT_GT(static_cast<double>(sums[i]), happenings[i].least * static_cast<double>(storm.runs()))
        << happenings[i].name;
  }
  std::cout << "\n";
}

/// A rule that a simulator breaks, and a part of the violation that its run must end with.
template <typename Sabotage>
struct BrokenRuleCase {
  const char* name;
  Sabotage sabotage;
  const char* noticed_as;

  friend void PrintTo(const BrokenRuleCase& rule, std::ostream* out) { *out << rule.name; }
};

/// The name of a case, for INSTANTIATE_TEST_SUITE_P.
inline constexpr auto kNameOfRule = [](const auto& rule) { return std::string(rule.param.name); };

/// A property that no broken rule can violate is no property: one of the seeds from 1 to `seeds` must find this one.
inline void expect_noticed(std::uint64_t seeds, const std::string& as, const SimulateSeed& simulate) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    if (simulate(seed).find(as) != std::string::npos) return;
  }
  FAIL() << seeds << " runs with a broken rule went well";
}

}  // namespace freshet::test
