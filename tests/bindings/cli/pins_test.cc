// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

class PinCommands : public testing::Test {
 protected:
  void SetUp() override { write_file(folder_ / "weights", encoded(chain(1, 2, 3))); }
  Ended repo(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"repo", "--repo", repository_, "--json"});
    return run(arguments);
  }
  void put(const std::string& model, int versions) {
    for (int i = 0; i < versions; ++i) {
      const Ended ended = repo({"put", model, "--weights", folder_ / "weights"});
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
    }
  }
  void pin(const std::string& version, const std::string& by) {
    const Ended ended = repo({"pin", version, "--by", by});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }
  /// "net@1 me 2" each.
  std::vector<std::string> pins(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), "pins");
    const Ended ended = repo(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    std::vector<std::string> texts;
    for (const Json& line : ended.json_lines()) {
      EXPECT_EQ(line["left_ms"], nullptr);
      texts.push_back(line["model"].get<std::string>() + "@" + std::to_string(line["version"].get<int>()) + " " +
                      line["by"].get<std::string>() + " " + std::to_string(line["count"].get<int>()));
    }
    return texts;
  }

  void list_and_let_go() {
    put("net", 2);
    put("other", 3);
    pin("net@1", "me");
    pin("net@2", "worker7");
    pin("net@2", "worker7");
    pin("other@3", "worker7");
    using Texts = std::vector<std::string>;
    EXPECT_EQ(pins(), (Texts{"net@1 me 1", "net@2 worker7 2", "other@3 worker7 1"}));
    EXPECT_EQ(pins({"--by", "worker7"}), (Texts{"net@2 worker7 2", "other@3 worker7 1"}));
    EXPECT_EQ(pins({"net"}), (Texts{"net@1 me 1", "net@2 worker7 2"}));
    EXPECT_EQ(pins({"net@1"}), Texts{"net@1 me 1"});
    EXPECT_EQ(pins({"other@1"}), Texts{});
    EXPECT_EQ(repo({"pins", "nothing"}).exit_code, 3);
    EXPECT_EQ(repo({"pins", "net@9"}).exit_code, 3);

    const Ended gone = repo({"unpin", "--all", "--by", "worker7"});
    EXPECT_EQ(gone.exit_code, 0) << gone.err;
    ASSERT_EQ(gone.json_lines().size(), 2u);
    EXPECT_EQ(gone.json_lines()[0], Json::parse(R"({"model":"net","version":2,"by":"worker7","taken":2,"pins":[]})"));
    EXPECT_EQ(pins(), Texts{"net@1 me 1"});
    const Ended none = repo({"unpin", "--all", "--by", "worker7"});
    EXPECT_EQ(none.exit_code, 3);
    EXPECT_THAT(none.err, HasSubstr("worker7"));
    EXPECT_EQ(repo({"unpin", "net@2", "--by", "worker7"}).exit_code, 3);
    EXPECT_EQ(repo({"unpin", "--all"}).exit_code, 2);
    EXPECT_EQ(repo({"unpin"}).exit_code, 2);
    pin("net@2", "me");
    EXPECT_EQ(repo({"unpin", "net@1", "--all", "--by", "me"}).exit_code, 0);
    EXPECT_EQ(pins(), Texts{"net@2 me 1"});
  }

  TemporaryFolder folder_;
  std::string repository_ = folder_ / "repository";
};

TEST_F(PinCommands, AHoldersPinsAreListedAndLetGo) { list_and_let_go(); }

TEST_F(PinCommands, OfSeveralProvidersToo) {
  const auto address = [&](const char* name) { return "ipc://" + (folder_ / name); };
  Running first({"provider", "--repo", folder_ / "a", "--listen", address("first"), "--json"}, {});
  ASSERT_EQ(first.next_json()["address"], address("first"));
  Running second(
      {"provider", "--repo", folder_ / "b", "--listen", address("second"), "--join", address("first"), "--json"}, {});
  ASSERT_EQ(second.next_json()["address"], address("second"));
  repository_ = address("first");
  list_and_let_go();
  const Ended said = repo({"set", "net@1", "--quality", "0.5", "--tag", "k=v"});
  EXPECT_EQ(said.exit_code, 0) << said.err;
  EXPECT_EQ(said.json(), Json::parse(R"({"model":"net","version":1,"quality":0.5,"tags":{"k":"v"}})"));
  EXPECT_EQ(repo({"ls", "net", "--tag", "k=v"}).json()["version"], 1);
}

TEST_F(PinCommands, WhatIsSaidLaterIsSeenAndChecked) {
  put("net", 2);
  EXPECT_EQ(repo({"set", "net@1", "--quality", "0.5", "--tag", "k=v", "--tag", "l=w"}).json(),
            Json::parse(R"({"model":"net","version":1,"quality":0.5,"tags":{"k":"v","l":"w"}})"));
  EXPECT_EQ(repo({"set", "net@1", "--no-quality", "--untag", "k"}).json(),
            Json::parse(R"({"model":"net","version":1,"quality":null,"tags":{"l":"w"}})"));
  EXPECT_EQ(repo({"show", "net@1"}).json()["tags"], Json::parse(R"({"l":"w"})"));
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"set", "net@1"},
                                             {"set", "net@1", "--quality", "nan"},
                                             {"set", "net@1", "--quality", "1", "--no-quality"},
                                             {"set", "net@1", "--tag", "novalue"},
                                             {"set", "net@1", "--tag", "a=1", "--untag", "a"}}) {
    EXPECT_EQ(repo(wrong).exit_code, 2) << testing::PrintToString(wrong);
  }
  EXPECT_EQ(repo({"set", "net@9", "--quality", "1"}).exit_code, 3);
  EXPECT_EQ(repo({"set", "none", "--quality", "1"}).exit_code, 3);
}

TEST(FailedJoin, LeavesWhatWasThereAndNothingElse) {
  TemporaryFolder folder;
  namespace fs = std::filesystem;
  const std::string nobody = "ipc://" + (folder / "nobody");
  const auto join = [&](const std::string& store, int code = 5) {
    const Ended ended = run({"provider", "--repo", store, "--join", nobody, "--json"});
    EXPECT_EQ(ended.exit_code, code) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_EQ(ended.out, "");
  };
  join(folder / "new/deep/store");
  EXPECT_FALSE(fs::exists(folder / "new"));
  fs::create_directories(folder / "empty");
  join(folder / "empty");
  EXPECT_TRUE(fs::exists(folder / "empty")) << "it was there";
  EXPECT_TRUE(fs::is_empty(folder / "empty"));
  fs::create_directories(folder / "mine");
  write_file(folder / "mine/notes", "keep");
  join(folder / "mine", 1);
  EXPECT_EQ(read_file(folder / "mine/notes"), "keep");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "mine"), fs::directory_iterator()), 1);
  write_file(folder / "weights", encoded(chain(1, 2, 3)));
  const std::vector<std::string> put = {"repo", "--repo",    folder / "used",   "put",
                                        "net",  "--weights", folder / "weights"};
  ASSERT_EQ(run(put).exit_code, 0);
  join(folder / "used");
  EXPECT_EQ(run({"repo", "--repo", folder / "used", "show", "net@1"}).exit_code, 0);
}

}  // namespace
}  // namespace freshet::cli_test
