// SPDX-License-Identifier: Apache-2.0
// Slices of what scripts/prove_tiering.sh and scripts/soak_tiering.sh do at length.

#include <gtest/gtest.h>

#include <random>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

std::string programs() {
  const std::string freshet = FRESHET_PROGRAM;
  return freshet.substr(0, freshet.rfind('/'));
}

TEST(TierProof, AnUnchangedTrainerHasTheSameLossesToTheLastBit) {
  const TierLab lab;
  const Ran ran = lab.run({"/usr/bin/env", "python3", FRESHET_TIER_SOURCE "/prove.py", programs(), "60"});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
  EXPECT_NE(ran.out.find("losses are equal to the last bit"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("copied once: 60 files"), std::string::npos) << ran.out;
}

TEST(TierProof, KillsOfProgramsAndKeepersLeaveNothingHalfThatIsRead) {
  const TierLab lab;
  const std::string seed = std::to_string(std::random_device()());
  SCOPED_TRACE("seed " + seed);
  const Ran ran = lab.run({"/usr/bin/env", "python3", FRESHET_TIER_SOURCE "/soak.py", programs(), "--kills", "12",
                           "--files", "300", "--seed", seed});
  EXPECT_EQ(ran.code, 0) << ran.out << ran.err;
}

}  // namespace
}  // namespace freshet::test
