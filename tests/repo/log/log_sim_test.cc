// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>

#include "core/base/format.h"
#include "tests/repo/log/log_simulation.h"
#include "tests/support/storm.h"

namespace freshet::sim {
namespace {

using log::BrokenRule;

TEST(LogSimulation, NothingAcknowledgedIsLost) {
  const test::Storm storm(25);
  const std::uint64_t runs = storm.runs();
  LogOutcome sum;
  storm.run([&sum](std::uint64_t seed) {
    const LogOutcome outcome = simulate_log(seed, BrokenRule::none);
    sum.events += outcome.events;
    sum.records += outcome.records;
    sum.batches += outcome.batches;
    sum.shared += outcome.shared;
    sum.challenges += outcome.challenges;
    sum.ownerships += outcome.ownerships;
    sum.refused_claims += outcome.refused_claims;
    sum.ends += outcome.ends;
    sum.sleeps += outcome.sleeps;
    sum.kills += outcome.kills;
    sum.late_writes += outcome.late_writes;
    sum.snapshots += outcome.snapshots;
    sum.emptied += outcome.emptied;
    sum.erased += outcome.erased;
    sum.answers += outcome.answers;
    sum.unknown += outcome.unknown;
    return outcome.violation;
  });
  if (HasFatalFailure()) return;
  std::cout << format(
      "{}: {} events, {} records ({} shared) with {} batches ({} of unknown end), {} challenges, {} ownerships, {} "
      "claims "
      "refused, {} ends, {} sleeps, {} kills, {} late writes, {} snapshots, {} records emptied, {} objects erased, {} "
      "answers\n",
      storm.seeds(), sum.events, sum.records, sum.shared, sum.batches, sum.unknown, sum.challenges, sum.ownerships,
      sum.refused_claims, sum.ends, sum.sleeps, sum.kills, sum.late_writes, sum.snapshots, sum.emptied, sum.erased,
      sum.answers);
  // A storm in which nothing happens would prove nothing.
  if (runs >= 10) {
    EXPECT_GT(sum.batches, 50 * runs);
    EXPECT_GT(sum.shared, runs);
    EXPECT_GT(sum.ownerships, 3 * runs);
    EXPECT_GT(sum.refused_claims, runs / 2);
    EXPECT_GT(sum.snapshots, 2 * runs);
    EXPECT_GT(sum.emptied, 10 * runs);
    EXPECT_GT(sum.erased, 10 * runs);
    EXPECT_GT(sum.answers, 100 * runs);
    EXPECT_GT(sum.late_writes, 5 * runs);
  }
}

using BrokenLog = test::BrokenRuleCase<BrokenRule>;

class BrokenLogRule : public ::testing::TestWithParam<BrokenLog> {};

TEST_P(BrokenLogRule, IsNoticed) {
  test::expect_noticed(200, GetParam().noticed_as,
                       [](std::uint64_t seed) { return simulate_log(seed, GetParam().sabotage).violation; });
}

INSTANTIATE_TEST_SUITE_P(
    LogSimulation, BrokenLogRule,
    ::testing::Values(
        BrokenLog{"records_are_deleted", BrokenRule::records_are_deleted, "was made twice"},
        BrokenLog{"emptied_records_say_nothing", BrokenRule::emptied_records_say_nothing, "was refused, and is in"},
        BrokenLog{"emptied_records_are_skipped", BrokenRule::emptied_records_are_skipped, "are not those of the log"},
        BrokenLog{"a_miss_settles", BrokenRule::a_miss_settles, "was refused, and is in"},
        BrokenLog{"any_record_settles", BrokenRule::any_record_settles, "acknowledged, and is not in the log"},
        BrokenLog{"challengers_do_not_wait", BrokenRule::challengers_do_not_wait, "a stale name"},
        BrokenLog{"answers_without_looks", BrokenRule::answers_without_looks, "a stale name"},
        BrokenLog{"looks_count_from_their_end", BrokenRule::looks_count_from_their_end, "a stale name"},
        BrokenLog{"challenged_looks_count", BrokenRule::challenged_looks_count, "a stale name"},
        BrokenLog{"settled_creations_count", BrokenRule::settled_creations_count, "a stale name"},
        BrokenLog{"ending_owners_answer", BrokenRule::ending_owners_answer, "a stale name"},
        BrokenLog{"no_grace", BrokenRule::no_grace, "within the grace"},
        BrokenLog{"grace_by_own_clock", BrokenRule::grace_by_own_clock, "within the grace"},
        BrokenLog{"stamps_for_later_records", BrokenRule::stamps_for_later_records, "within the grace"},
        BrokenLog{"live_uploads_are_swept", BrokenRule::live_uploads_are_swept, "may still name it"},
        BrokenLog{"snapshots_without_tokens", BrokenRule::snapshots_without_tokens, "a member stopped"},
        BrokenLog{"condemned_objects_are_forgotten_early", BrokenRule::condemned_objects_are_forgotten_early,
                  "which is not there"},
        BrokenLog{"condemned_objects_are_named", BrokenRule::condemned_objects_are_named, "a value names it"}),
    test::kNameOfRule);

}  // namespace
}  // namespace freshet::sim
