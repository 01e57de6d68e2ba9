// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

/// A model is bad when its file has the letter 'X' somewhere: each tensor is filled with a byte, and names have none.
constexpr const char* kEval = "! grep -q X {}";

class BisectCommand : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(temporary()); }
  void TearDown() override { EXPECT_TRUE(std::filesystem::is_empty(temporary())) << "files were left"; }

  std::string temporary() const { return folder_ / "temporary"; }
  Environment environment() const { return {{"FRESHET_REPO", folder_ / "repository"}, {"TMPDIR", temporary()}}; }

  void put(const std::string& model, const ModelBytes& weights, std::vector<std::string> more = {}) {
    write_file(folder_ / "weights", encoded(weights));
    std::vector<std::string> arguments = {"repo", "put", model, "--weights", folder_ / "weights"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ASSERT_EQ(run(arguments, environment()).exit_code, 0);
  }
  /// net@1 to net@7, each from the one before; b.w turns bad in net@5, in which c.w changes, too.
  void put_line() {
    put("net", chain(1, 2, 3));
    for (char i = 2; i <= 7; ++i) {
      put("net", chain(i, i < 5 ? 2 : 'X', i < 5 ? 3 : 5), {"--ancestor", "net"});
    }
  }
  Ended bisect(std::vector<std::string> more, const std::string& command = kEval) {
    std::vector<std::string> arguments = {"bisect", "net", "--exec", command, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, environment());
  }

  TemporaryFolder folder_;
};

TEST_F(BisectCommand, FindsTheVersionAndThenTheTensor) {
  put_line();
  const Ended ended = bisect({"--good", "1", "--bad", "net@7"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<Json> lines = ended.json_lines();
  ASSERT_GE(lines.size(), 3u);
  EXPECT_EQ(lines.front(), Json::parse(R"({"tried":"net@1","verdict":"good","exit_code":0})"));
  Json found = lines.back();
  EXPECT_GE(found["runs"], 6);
  found.erase("runs");
  EXPECT_EQ(found, Json::parse(R"({"last_good":"net@4","first_bad":"net@5","skipped":[],"changed_tensors":3,
                                   "tensors":["b.w"],"tensor_bytes":16})"));
}

TEST_F(BisectCommand, ForPeopleItSaysWhatItDoes) {
  put_line();
  const Ended ended = run({"bisect", "net", "--good", "1", "--bad", "7", "--exec", kEval}, environment());
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("first bad: net@5 (last good: net@4)\n"));
  EXPECT_THAT(ended.out, HasSubstr("1 of 3 changed tensors make it bad:\n  b.w\n"));
}

TEST_F(BisectCommand, FindsTensorsThatHurtOnlyTogether) {
  put("net", chain(1, 2, 3));
  put("net", chain('X', 4, 'Y'), {"--ancestor", "net"});
  const Ended ended = bisect({"--good", "1", "--bad", "2"}, "! (grep -q X {} && grep -q Y {})");
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json_lines().back()["tensors"], Json::parse(R"(["a.w","c.w"])"));
}

TEST_F(BisectCommand, VersionsThatCannotBeTriedAreSkipped) {
  put_line();
  const std::string command = "case {} in *net@4.*|*net@5.*) exit 125;; esac; ! grep -q X {}";
  const Ended ended = bisect({"--good", "1", "--bad", "7"}, command);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const Json found = ended.json_lines().back();
  EXPECT_EQ(found["last_good"], "net@3");
  EXPECT_EQ(found["first_bad"], "net@6");
  EXPECT_EQ(found["skipped"], Json::parse(R"(["net@4","net@5"])"));
  EXPECT_EQ(found["tensors"], Json::parse(R"(["b.w"])"));
}

TEST_F(BisectCommand, RetiredVersionsAreSkippedAndNoEnds) {
  put_line();
  ASSERT_EQ(run({"repo", "retire", "net@4", "net@2"}, environment()).exit_code, 0);
  const std::vector<Json> lines = bisect({"--good", "1", "--bad", "7"}).json_lines();
  EXPECT_EQ(lines.back()["last_good"], "net@3");
  EXPECT_EQ(lines.back()["first_bad"], "net@5");
  EXPECT_EQ(lines.back()["skipped"], Json::parse(R"(["net@4"])"));
  EXPECT_EQ(std::ranges::count(lines, Json::parse(R"({"tried":"net@4","verdict":"skipped","reason":"retired"})")), 1);
  const Ended end = bisect({"--good", "2", "--bad", "7"});
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_THAT(end.err, HasSubstr("net@2 was retired"));
}

TEST_F(BisectCommand, AGraphThatChangedIsTriedWithTheTensorsThatWereThereBefore) {
  const auto with_more = [](ModelBytes model, char fill) {
    model.tensors.push_back({.name = "d.w", .dtype = "F32", .shape = {4}, .bytes = std::string(16, fill)});
    return model;
  };
  put("net", chain(1, 2, 3));
  put("net", with_more(chain(1, 'X', 4), 9), {"--ancestor", "net@1"});
  put("net", with_more(chain(1, 2, 4), 'X'), {"--ancestor", "net@1"});
  const Json exchanged = bisect({"--good", "1", "--bad", "2"}).json_lines().back();
  EXPECT_EQ(exchanged["tensors"], Json::parse(R"(["b.w"])"));
  const Json in_the_graph = bisect({"--good", "1", "--bad", "3"}).json_lines().back();
  EXPECT_EQ(in_the_graph["tensors"], Json());
  EXPECT_THAT(in_the_graph["reason"].get<std::string>(), HasSubstr("1 new"));
}

TEST_F(BisectCommand, WhatMakesNoSenseIsSaidInOneLine) {
  put_line();
  put("other", chain(1, 1, 1));
  put("net", chain(1, 1, 8), {"--ancestor", "net@2"});
  struct Case {
    const char* good;
    const char* bad;
    const char* command;
    int exit_code;
    const char* says;
  };
  for (const Case& one :
       {Case{"7", "1", kEval, 1, "exchange --good and --bad"}, Case{"3", "3", kEval, 1, "both good and bad"},
        Case{"3", "8", kEval, 1, "both came from net@2"}, Case{"other@1", "7", kEval, 1, "no ancestor in common"},
        Case{"1", "99", kEval, 3, "net@99"}, Case{"nobody", "7", kEval, 3, "nobody"},
        Case{"5", "7", kEval, 1, "net@5 was given as good"}, Case{"1", "4", kEval, 1, "net@4 was given as bad"},
        Case{"1", "7", "exit 125 {}", 1, "net@1 was given as good, but is skipped"},
        Case{"1", "7", "exit 128 {}", 1, "exit code 128"},
        Case{"1", "7", "no-such-program {}", 1, "exit code 127: the command, or one that it calls, was not found"},
        Case{"1", "7", "/dev/null {}", 1, "exit code 126: the command, or one that it calls, cannot be run"},
        Case{"1", "7", "kill -9 $$ {}", 1, "signal 9"}, Case{"1", "7", "true", 2, "{}"},
        Case{"0", "7", kEval, 2, "net@0"}}) {
    const Ended ended = bisect({"--good", one.good, "--bad", one.bad}, one.command);
    EXPECT_EQ(ended.exit_code, one.exit_code) << one.says << ": " << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(one.says));
  }
  EXPECT_EQ(bisect({"--good", "1"}).exit_code, 2);
}

TEST_F(BisectCommand, AnInterruptEndsItAndLeavesNoFiles) {
  put_line();
  // The command tells that it runs, and waits for the end. It tells when the program has left its start, during which
  // it blocks signals: another thread would get this one, and a sanitizer keep it there.
  Running running(
      {"bisect", "net", "--good", "1", "--bad", "7", "--exec", "sleep 0.5; echo {} >&2; exec sleep 60", "--json"},
      environment());
  ASSERT_TRUE(running.next_error_line().has_value());
  running.signal(SIGINT);
  EXPECT_EQ(running.wait().exit_code, 130);
}

}  // namespace
}  // namespace freshet::cli_test
