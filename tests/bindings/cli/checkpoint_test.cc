// SPDX-License-Identifier: Apache-2.0
// `freshet checkpoint interval`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/bindings/cli/support/program.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

/// The share that is lost, by the model's sum: each failure costs what was begun and a restart.
double waste(double c, double m, double r, double w) {
  return 1 - w / (m * std::exp(r / m) * (std::exp((w + c) / m) - 1));
}

TEST(Checkpoint, IntervalSaysHowLongToCompute) {
  const Ended ended =
      run({"checkpoint", "interval", "--cost-ms", "20000", "--mtbf-s", "7200", "--restart-ms", "60000", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const Json answer = ended.json();
  EXPECT_NEAR(answer["young_s"], std::sqrt(2 * 20 * 7200.0), 1e-9);
  double best = 1;
  double at = 0;
  for (double w = 1; w < 7200; w += 0.25) {
    if (waste(20, 7200, 60, w) >= best) continue;
    best = waste(20, 7200, 60, w);
    at = w;
  }
  EXPECT_NEAR(answer["interval_s"], at, 0.5);
  EXPECT_NEAR(answer["daly_s"], at, 5);
  EXPECT_NEAR(answer["waste"], best, 1e-6);
  EXPECT_EQ(answer.size(), 4U);
  EXPECT_THAT(run({"checkpoint", "interval", "--cost-ms", "20000", "--mtbf-s", "7200"}).out, HasSubstr("Young"));
}

TEST(Checkpoint, IntervalNamesWhatIsWrong) {
  const std::vector<std::vector<std::string>> wrong = {{"--cost-ms", "0", "--mtbf-s", "1"},
                                                       {"--cost-ms", "-1", "--mtbf-s", "1"},
                                                       {"--cost-ms", "1", "--mtbf-s", "nan"},
                                                       {"--cost-ms", "1", "--mtbf-s", "1e99"},
                                                       {"--cost-ms", "1"},
                                                       {"--cost-ms", "x", "--mtbf-s", "1"},
                                                       {"--cost-ms", "1", "--mtbf-s", "1", "--restart-ms", "-1"}};
  for (std::vector<std::string> words : wrong) {
    words.insert(words.begin(), {"checkpoint", "interval"});
    const Ended ended = run(words);
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_EQ(ended.out, "");
    EXPECT_NE(ended.err, "");
  }
  EXPECT_EQ(run({"checkpoint"}).exit_code, 2);
}

}  // namespace
}  // namespace freshet::cli_test
