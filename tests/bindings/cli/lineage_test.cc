// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// root@1, of which left@1 and right@1 came; left@2 came from left@1; lonely@1 from nobody.
class LineageCommand : public testing::Test {
 protected:
  void SetUp() override {
    put("root", chain(1, 2, 3), {"--quality", "0.5"});
    put("left", chain(1, 2, 4), {"--ancestor", "root", "--quality", "0.6"});
    put("right", chain(1, 5, 3), {"--ancestor", "root"});
    put("left", chain(1, 6, 4), {"--ancestor", "left", "--quality", "0.7"});
    put("lonely", chain(7, 7, 7), {});
  }

  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "repo");
    arguments.push_back("--json");
    return run(arguments, {{"FRESHET_REPO", folder_ / "repository"}});
  }
  void put(const std::string& model, const ModelBytes& weights, std::vector<std::string> more) {
    write_file(folder_ / "weights", encoded(weights));
    std::vector<std::string> arguments = {"put", model, "--weights", folder_ / "weights"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(repo(arguments).exit_code, 0);
  }
  std::vector<std::string> names(std::vector<std::string> arguments) {
    std::vector<std::string> names;
    for (const Json& row : repo(std::move(arguments)).json()) names.push_back(row["version"]);
    return names;
  }
  Json mrca(const std::string& a, const std::string& b) { return repo({"mrca", a, b}).json()["version"]; }

  TemporaryFolder folder_;
};

TEST_F(LineageCommand, LinesMeetWhereBranchesParted) {
  EXPECT_THAT(names({"lineage", "left"}), ElementsAre("left@2", "left@1", "root@1"));
  EXPECT_THAT(names({"descendants", "root"}), ElementsAre("left@1", "right@1", "left@2"));
  EXPECT_THAT(names({"descendants", "right"}), IsEmpty());
  EXPECT_EQ(mrca("left", "right"), "root@1");
  EXPECT_EQ(mrca("left@1", "left@2"), "left@1");
  EXPECT_EQ(mrca("left", "left"), "left@2");
  EXPECT_EQ(mrca("left", "lonely"), Json());
  EXPECT_EQ(repo({"mrca", "left", "nobody"}).exit_code, 3);
  EXPECT_EQ(repo({"descendants", "left@9"}).exit_code, 3);
  EXPECT_EQ(repo({"contributors", "left@9"}).exit_code, 3);
}

TEST_F(LineageCommand, ContributorsComeFromTheNearestOn) {
  EXPECT_EQ(repo({"contributors", "left"}).json(), Json::parse(R"([
      {"version":"left@2","tensors":1,"bytes":16,"ancestor":true,"names":["b.w"]},
      {"version":"left@1","tensors":1,"bytes":16,"ancestor":true,"names":["c.w"]},
      {"version":"root@1","tensors":1,"bytes":16,"ancestor":true,"names":["a.w"]}])"));
}

TEST_F(LineageCommand, DrawsWhatItLists) {
  const auto drawn = [this](std::vector<std::string> arguments) {
    const std::string file = folder_ / "drawing";
    arguments.push_back(file);
    const Ended ended = repo(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return read_file(file).value_or("nothing");
  };
  const std::string line = drawn({"lineage", "left", "--svg"});
  EXPECT_THAT(line, HasSubstr("left@2"));
  EXPECT_THAT(line, Not(HasSubstr("right@1")));
  EXPECT_THAT(drawn({"lineage", "--all", "--svg"}), HasSubstr("lonely@1"));
  EXPECT_THAT(drawn({"descendants", "root", "--svg"}), HasSubstr(">root@1"));
  const std::string graph = drawn({"descendants", "root", "--dot"});
  EXPECT_THAT(graph, HasSubstr("digraph \"root\""));
  EXPECT_THAT(graph, HasSubstr("n0 -> n1;"));

  const Ended nowhere = repo({"lineage", "left", "--svg", folder_ / "none/x.svg"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("none"));
  EXPECT_EQ(nowhere.out, "");
  EXPECT_EQ(repo({"lineage"}).exit_code, 2);
  EXPECT_EQ(repo({"lineage", "left", "--all"}).exit_code, 2);
}

}  // namespace
}  // namespace freshet::cli_test
