// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/repo/log/log_simulation.h"
#include "tests/support/storm.h"

namespace freshet::sim {
namespace {

using log::BrokenRule;

TEST(LogSimulation, NothingAcknowledgedIsLost) {
  test::expect_eventful_storm<LogOutcome>(
      25, [](std::uint64_t seed) { return simulate_log(seed, BrokenRule::none); },
      {{"events", &LogOutcome::events},
       {"records", &LogOutcome::records},
       {"records with several batches", &LogOutcome::shared, 1},
       {"batches", &LogOutcome::batches, 50},
       {"batches of unknown end", &LogOutcome::unknown},
       {"challenges", &LogOutcome::challenges},
       {"ownerships", &LogOutcome::ownerships, 3},
       {"claims refused", &LogOutcome::refused_claims, 0.5},
       {"ends", &LogOutcome::ends},
       {"sleeps", &LogOutcome::sleeps},
       {"kills", &LogOutcome::kills},
       {"late writes", &LogOutcome::late_writes, 5},
       {"snapshots", &LogOutcome::snapshots, 2},
       {"records emptied", &LogOutcome::emptied, 10},
       {"objects erased", &LogOutcome::erased, 10},
       {"answers", &LogOutcome::answers, 100}});
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
