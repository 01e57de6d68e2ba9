// SPDX-License-Identifier: Apache-2.0
/// A short slice of scripts/many_hosts.sh, which runs longer and has more faults.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/support/net/lab/network_namespace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

void run_slice(const std::string& store, const std::string& faults) {
  if (test::under_sanitizer()) {
    GTEST_SKIP() << "eight hosts under a sanitizer on two cores take minutes; the plain build runs them";
  }
  if (!lab::why_no_lab().empty()) GTEST_SKIP() << lab::why_no_lab();
  const TemporaryFolder folder;
  const std::string said = folder / "said";
  const std::string command = "FRESHET_BIN=" + test::built("bin") + " TMPDIR=" + folder.path() +
                              " " SCRIPTS "/many_hosts.sh --seed 1 --store " + store + " --faults '" + faults + "' > " +
                              said + " 2>&1";
  const int status = std::system(command.c_str());
  std::stringstream text;
  text << std::ifstream(said).rdbuf();
  ASSERT_TRUE(WIFEXITED(status)) << text.str();
  if (WEXITSTATUS(status) == 5) GTEST_SKIP() << text.str();
  EXPECT_EQ(WEXITSTATUS(status), 0) << text.str();
}

TEST(ManyHosts, LoseNothingWhenOwnerWorkerAndStoreAreKilled) {
  run_slice("seaweedfs", "kill owner,kill worker,kill store");
}

TEST(ManyHosts, LoseNothingInAPoolOfCeph) { run_slice("ceph", "kill owner,kill store"); }

}  // namespace
}  // namespace freshet
