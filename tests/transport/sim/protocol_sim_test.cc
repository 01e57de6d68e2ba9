// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/storm.h"
#include "tests/transport/sim/simulation.h"

namespace freshet::sim {
namespace {

TEST(ProtocolSimulation, EveryPropertyHoldsThroughTheStorm) {
  test::expect_eventful_storm<Outcome>(60, [](std::uint64_t seed) { return simulate(seed, Sabotage::none); },
                                       {{"versions", &Outcome::versions, 20},
                                        {"incarnations", &Outcome::incarnations, 2},
                                        {"installs", &Outcome::installs, 40},
                                        {"fetched", &Outcome::fetches, 20},
                                         {"on the device", &Outcome::installs_on_device, 2},
                                        {"in gaps", &Outcome::gaps, 1},
                                        {"skipped", &Outcome::skipped, 0},
                                        {"times shed", &Outcome::shed, 0}});
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
