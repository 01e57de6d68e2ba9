// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "core/base/format.h"
#include "tests/support/storm.h"
#include "tests/transport/sim/simulation.h"

namespace freshet::sim {
namespace {

TEST(ProtocolSimulation, EveryPropertyHoldsThroughTheStorm) {
  const test::Storm storm(60);
  const std::uint64_t runs = storm.runs();
  Outcome sum;
  storm.run([&sum](std::uint64_t seed) {
    const Outcome outcome = simulate(seed, Sabotage::none);
    sum.versions += outcome.versions;
    sum.installs += outcome.installs;
    sum.fetches += outcome.fetches;
    sum.installs_on_device += outcome.installs_on_device;
    sum.gaps += outcome.gaps;
    sum.skipped += outcome.skipped;
    sum.shed += outcome.shed;
    sum.incarnations += outcome.incarnations;
    return outcome.violation;
  });
  if (HasFatalFailure()) return;
  std::cout << format(
      "{}: {} versions of {} incarnations, {} installs, {} fetched, {} on the device, {} in gaps, {} skipped, {} times "
      "shed\n",
      storm.seeds(), sum.versions, sum.incarnations, sum.installs, sum.fetches, sum.installs_on_device, sum.gaps,
      sum.skipped, sum.shed);
  // A storm in which nothing happens would prove nothing.
  EXPECT_GT(sum.versions, 20 * runs);
  EXPECT_GT(sum.installs, 40 * runs);
  EXPECT_GT(sum.fetches, 20 * runs);
  if (runs >= 20) {
    EXPECT_GT(sum.installs_on_device, 2 * runs);
    EXPECT_GT(sum.incarnations, 2 * runs);
    EXPECT_GT(sum.gaps, runs);
    EXPECT_GT(sum.skipped, 0u);
    EXPECT_GT(sum.shed, 0u);
  }
}

using Broken = test::BrokenRuleCase<Sabotage>;

class BrokenRule : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenRule, IsNoticed) {
  test::expect_noticed(200, GetParam().noticed_as,
                       [](std::uint64_t seed) { return simulate(seed, GetParam().sabotage).violation; });
}

INSTANTIATE_TEST_SUITE_P(
    ProtocolSimulation, BrokenRule,
    ::testing::Values(Broken{"release_on_timer", Sabotage::release_on_timer, "could read it"},
                      Broken{"ignore_grants_seen", Sabotage::ignore_grants_seen, "could read it"},
                      Broken{"leave_door_early", Sabotage::leave_door_early, "could read it"},
                      Broken{"forget_gap", Sabotage::forget_gap, "accounted for"},
                      Broken{"lose_freed_segments", Sabotage::lose_freed_segments, "bytes are live"},
                      Broken{"never_unpin", Sabotage::never_unpin, "are kept"},
                      Broken{"reuse_device_memory", Sabotage::reuse_device_memory, "could read it"},
                      Broken{"write_in_place", Sabotage::write_in_place, "torn"},
                      Broken{"close_lease_early", Sabotage::close_lease_early, "fetch from"},
                      Broken{"never_close_lease", Sabotage::never_close_lease, "are kept"},
                      Broken{"install_unproved", Sabotage::install_unproved, "torn"},
                      Broken{"believe_any_lease", Sabotage::believe_any_lease, "was believed"},
                      Broken{"forget_relay_gap", Sabotage::forget_relay_gap, "accounted for"},
                      Broken{"map_what_is_coming", Sabotage::map_what_is_coming, "torn"},
                      Broken{"reuse_what_is_passed_on", Sabotage::reuse_what_is_passed_on, "fetch from"},
                      Broken{"never_go_around", Sabotage::never_go_around, "and not"},
                      Broken{"never_withdraw", Sabotage::never_withdraw, "and not"}),
    test::kNameOfRule);

}  // namespace
}  // namespace freshet::sim
