// SPDX-License-Identifier: Apache-2.0
/// A short slice of scripts/three_hosts.sh, which runs longer and kills more often.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/net/lab/network_namespace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet::live {
namespace {

TEST(ThreeHosts, ServeThroughARelayUnderLossAndKills) {
  if (test::under_sanitizer()) {
    GTEST_SKIP() << "thirteen processes under a sanitizer on two cores answer too late; the plain build runs it";
  }
  if (!lab::why_no_lab().empty()) GTEST_SKIP() << lab::why_no_lab();
  const TemporaryFolder folder;
  const std::string said = folder / "said";
  // Slow machines answer late; whether an answer comes at all is what this is about.
  const std::string command = "FRESHET_BIN=" + test::built("bin") + " TMPDIR=" + folder.path() +
                              " " SCRIPTS
                              "/three_hosts.sh --seconds 25 --kill-every 6 --rate 50 --scale 2MB --pace 60 "
                              "--schedule every:10 --deadline 20000 --report " +
                              (folder / "report") + " > " + said + " 2>&1";
  const int status = std::system(command.c_str());
  std::stringstream text;
  text << std::ifstream(said).rdbuf();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text.str();
}

}  // namespace
}  // namespace freshet::live
