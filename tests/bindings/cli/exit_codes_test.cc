// SPDX-License-Identifier: Apache-2.0
/// Every command of `freshet repo`, asked what it cannot do: the exit code says which kind of failure it is, one line
/// on stderr names the thing, and stdout has nothing that is no answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;
using Line = std::vector<std::string>;

/// A command, how a line of it goes that could be right, and what of it names a version.
struct Command {
  std::string name;
  Line good;     ///< With VERSION in the place of the version.
  Line wrong;    ///< A line that no repository makes right.
  bool changes;  ///< It needs to own the folder.
};

class ExitCodes : public testing::Test {
 protected:
  void SetUp() override {
    write_file(folder_ / "weights", encoded(chain(1, 2, 3)));
    write_file(folder_ / "g.json",
               R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"}],"outputs":["x"]})");
  }
  std::vector<Command> commands() const {
    const std::string out = folder_ / "out.safetensors";
    return {{"get", {"get", "VERSION", "-o", out}, {"get", "net"}, false},
            {"ls", {"ls", "MODEL"}, {"ls", "a", "b"}, false},
            {"show", {"show", "VERSION"}, {"show"}, false},
            {"lineage", {"lineage", "VERSION"}, {"lineage"}, false},
            {"descendants", {"descendants", "VERSION"}, {"descendants", "bad name"}, false},
            {"contributors", {"contributors", "VERSION"}, {"contributors"}, false},
            {"owners", {"owners", "VERSION"}, {"owners", "net@0"}, false},
            {"diff", {"diff", "VERSION", "VERSION"}, {"diff", "net@1"}, false},
            {"mrca", {"mrca", "VERSION", "VERSION"}, {"mrca", "net@1"}, false},
            {"match", {"match", "--graph", folder_ / "g.json", "--exclude", "VERSION"}, {"match"}, false},
            {"pins", {"pins", "VERSION"}, {"pins", "net@-"}, false},
            {"verify", {"verify", "VERSION"}, {"verify", "a", "b"}, false},
            {"export", {"export", "VERSION", "-o", folder_ / "exported"}, {"export", "-o", out}, false},
            {"alias", {"alias", "MODEL@best"}, {"alias", "net", "--remove"}, false},
            {"alias of a model", {"alias", "MODEL"}, {"alias", "net@1"}, false},
            {"alias --to", {"alias", "MODEL@best", "--to", "VERSION"}, {"alias", "net@1", "--to", "net@1"}, true},
            {"pin", {"pin", "VERSION"}, {"pin"}, true},
            {"unpin", {"unpin", "VERSION"}, {"unpin", "--all"}, true},
            {"set", {"set", "VERSION", "--quality", "1"}, {"set", "net@1"}, true},
            {"retire", {"retire", "VERSION"}, {"retire", "net"}, true},
            {"put", {"put", "child", "--graph", folder_ / "g.json", "--ancestor", "VERSION"}, {"put", "net"}, true},
            {"import", {"import", folder_ / "weights", "--model", "child", "--ancestor", "VERSION"}, {"import"}, true}};
  }
  /// Those that ask nothing about any version.
  std::vector<Command> general_commands() const {
    return {{"ls", {"ls"}, {"ls", "--tag", "novalue"}, false},
            {"stat", {"stat"}, {"stat", "net"}, false},
            {"verify", {"verify"}, {"verify", "--nonsense"}, false},
            {"gc --dry-run", {"gc", "--dry-run"}, {"gc", "net"}, false},
            {"gc", {"gc"}, {"gc", "--dry"}, true},
            {"match", {"match", "--graph", folder_ / "g.json"}, {"match", "--graph", "a", "--batch", "b"}, false},
            {"lineage --all", {"lineage", "--all"}, {"lineage", "net", "--all"}, false},
            {"pins", {"pins"}, {"pins", "a", "b"}, false},
            {"export", {"export", "--all", "-o", folder_ / "exported"}, {"export", "--all"}, false}};
  }
  static Line with(Line line, const std::string& version) {
    const std::string model = version.substr(0, version.find('@'));
    for (std::string& word : line) {
      if (word == "VERSION") word = version;
      if (const std::size_t at = word.find("MODEL"); at == 0) word = model + word.substr(5);
    }
    return line;
  }
  Ended repo(const std::string& place, Line line) {
    line.insert(line.begin(), {"repo", "--repo", place, "--json"});
    return run(line);
  }
  void expect(const std::string& place, const Line& line, int code, const std::string& named = "") {
    check(repo(place, line), line, code, named);
  }
  static void check(const Ended& ended, const Line& line, int code, const std::string& named) {
    SCOPED_TRACE(testing::PrintToString(line) + " exits with " + std::to_string(ended.exit_code) + ": " + ended.err);
    EXPECT_EQ(ended.exit_code, code);
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1);
    EXPECT_THAT(ended.err, HasSubstr(named));
    EXPECT_EQ(ended.out, "");
  }
  void put_net() { ASSERT_EQ(repo(folder_ / "store", {"put", "net", "--weights", folder_ / "weights"}).exit_code, 0); }

  TemporaryFolder folder_;
};

TEST_F(ExitCodes, AVersionThatIsNotThereIsNotFound) {
  put_net();
  for (const Command& command : commands()) {
    SCOPED_TRACE(command.name);
    expect(folder_ / "store", with(command.good, "other@1"), 3, "other");
    if (command.name == "ls" || command.name == "alias" || command.name == "alias of a model") continue;
    expect(folder_ / "store", with(command.good, "net@7"), 3, "net@7");
  }
  EXPECT_EQ(repo(folder_ / "store", {"ls"}).json_lines().size(), 1u) << "nothing was put";
}

TEST_F(ExitCodes, WrongUsageIsTwoWhateverIsThere) {
  std::vector<Command> all = commands();
  for (const Command& command : general_commands()) all.push_back(command);
  for (const Command& command : all) {
    expect(folder_ / "store", command.wrong, 2, "--help");
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "store"));
}

TEST_F(ExitCodes, AFolderThatIsNoRepositoryIsNotFound) {
  std::vector<Command> all = commands();
  for (const Command& command : general_commands()) all.push_back(command);
  for (const Command& command : all) {
    // These make one, and find no version in it.
    const bool makes = command.name == "put" || command.name == "import";
    expect(folder_ / "none", with(command.good, "net@1"), 3, makes ? "net" : folder_ / "none");
    std::filesystem::remove_all(folder_ / "none");
  }
}

TEST_F(ExitCodes, AnAddressWhereNobodyIsIsUnavailable) {
  const std::string address = "ipc://" + (folder_ / "nobody");
  std::vector<Command> all = commands();
  for (const Command& command : general_commands()) all.push_back(command);
  // Each waits for a while; all together wait no longer.
  std::vector<Running> running;
  for (const Command& command : all) {
    Line line = with(command.good, "net@1");
    line.insert(line.begin(), {"repo", "--repo", address, "--json"});
    running.emplace_back(line, Environment{});
  }
  for (std::size_t i = 0; i < all.size(); ++i) check(running[i].wait(), all[i].good, 5, address);
}

/// Flips a bit of every copy of `needle` in the folder's files.
void damage(const std::string& needle, const std::string& folder) {
  int flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::string text = read_file(entry.path().string()).value_or("");
    for (std::size_t at = text.find(needle); at != std::string::npos; at = text.find(needle, at + 1), ++flipped) {
      text[at] = static_cast<char>(text[at] ^ 1);
    }
    write_file(entry.path().string(), text);
  }
  EXPECT_GT(flipped, 0);
}

TEST_F(ExitCodes, DamageIsFour) {
  ModelBytes model = chain(1, 2, 3);
  model.tensors[1].bytes = "sixteen letters!";
  write_file(folder_ / "weights", encoded(model));
  put_net();
  // By now it lies in the log, with a checksum that shows it; elsewhere than in the log, the digest does.
  const std::string store = folder_ / "store";
  ASSERT_EQ(repo(store, {"gc"}).exit_code, 0);
  damage("sixteen letters!", store);
  const std::string out = folder_ / "out.safetensors";
  for (const Line& line : std::vector<Line>{{"get", "net", "-o", out}, {"export", "net", "-o", folder_ / "exported"}}) {
    expect(store, line, 4, "net@1");
  }
  EXPECT_FALSE(std::filesystem::exists(out));
  const Ended verified = repo(store, {"verify"});
  EXPECT_EQ(verified.exit_code, 4) << verified.err;
  EXPECT_EQ(verified.json_lines().size(), 1u);
  write_file(folder_ / "broken", "nonsense");
  const std::string whole = folder_ / "whole";
  expect(whole, {"put", "net", "--weights", folder_ / "broken"}, 4, folder_ / "broken");
  expect(whole, {"import", "--model", "net", folder_ / "broken"}, 4, folder_ / "broken");
}

TEST_F(ExitCodes, WhatIsRefusedIsOne) {
  put_net();
  const std::string store = folder_ / "store";
  ASSERT_EQ(repo(store, {"alias", "net@best", "--to", "net@1"}).exit_code, 0);
  expect(store, {"retire", "net@1"}, 1, "net@best");
  expect(store, {"alias", "net@best", "--to", "net@1", "--expect", "7"}, 1, "net@best");
  expect(store, {"get", "net", "-o", folder_ / "nowhere/out"}, 1, folder_ / "nowhere/out");
  expect(store, {"lineage", "net", "--svg", folder_ / "nowhere/out"}, 1, folder_ / "nowhere/out");
  expect(store, {"export", "net", "-o", folder_ / "weights"}, 1, folder_ / "weights");
  write_file(folder_ / "g.json", "{");
  expect(store, {"match", "--graph", folder_ / "g.json"}, 1, folder_ / "g.json");
  expect(store, {"put", "net", "--graph", folder_ / "g.json"}, 1, folder_ / "g.json");
  expect(store, {"put", "--batch", folder_ / "nothing"}, 3, folder_ / "nothing");
  expect(store, {"match", "--batch", folder_ / "nothing"}, 3, folder_ / "nothing");
}

TEST_F(ExitCodes, EachPatternOfTensorsNamesOne) {
  put_net();
  expect(folder_ / "store", {"get", "net", "--tensors", "a.*", "--tensors", "q.*", "-o", folder_ / "out"}, 3, "q.*");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

}  // namespace
}  // namespace freshet::cli_test
