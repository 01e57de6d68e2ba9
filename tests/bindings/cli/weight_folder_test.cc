// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

TEST(WeightFolders, VersionsGoOutAsAFolderAndComeBackFromIt) {
  const TemporaryFolder folder;
  const Environment environment{{"FRESHET_RUN_DIR", folder / "run"}};
  std::filesystem::create_directory(folder / "in");
  Running trainer({"publish", "net", "--watch", folder / "in", "--json"}, environment);
  Running writer({"subscribe", "net", "--every", "--out", folder / "versions", "--layout", "weight_v", "--json"},
                 environment);
  Running follower({"publish", "copy", "--follow", folder / "versions", "--json"}, environment);
  for (char version = 1; version <= 3; ++version) {
    const std::string file = folder / "in" + "/step" + std::to_string(version) + ".safetensors";
    write_file(file + ".tmp", encoded(chain(1, 2, version)));
    std::filesystem::rename(file + ".tmp", file);
    ASSERT_EQ(trainer.next_json()["version"], version);
    ASSERT_EQ(writer.next_json()["version"], version);
    const Json line = follower.next_json();
    EXPECT_EQ(line["version"], version);
    EXPECT_EQ(line["changed_tensors"], version == 1 ? 3 : 1);
  }
  EXPECT_TRUE(read_file(folder / "versions/weight_v000003/model.safetensors.index.json")->find("delta_encoding") !=
              std::string::npos);
  const Ended reader = run({"subscribe", "copy", "--out", folder / "out", "--count", "1", "--json"}, environment);
  ASSERT_EQ(reader.exit_code, 0) << reader.err;
  EXPECT_EQ(reader.json()["version"], 3);
  EXPECT_EQ(model_in(folder / "out/copy@3.safetensors").tensors, chain(1, 2, 3).tensors);
  // Nor is a publisher needed: a subscriber follows the folder itself.
  const Ended direct = run({"subscribe", "again", "--at", "file://" + (folder / "versions"), "--out", folder / "out",
                            "--count", "1", "--json"},
                           environment);
  ASSERT_EQ(direct.exit_code, 0) << direct.err;
  EXPECT_EQ(direct.json()["channel"], "file");
  EXPECT_EQ(model_in(folder / "out/again@3.safetensors").tensors, chain(1, 2, 3).tensors);
  EXPECT_EQ(run({"subscribe", "again", "--at", "file://versions"}, environment).exit_code, 2);
  // Started again, it finds what it wrote before.
  const Ended restarted =
      run({"subscribe", "net", "--out", folder / "versions", "--layout", "weight_v", "--count", "1", "--json"},
          environment);
  EXPECT_EQ(restarted.exit_code, 0) << restarted.err;
}

}  // namespace
}  // namespace freshet::cli_test
