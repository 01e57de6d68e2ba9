// SPDX-License-Identifier: Apache-2.0
/// Providers that are started again elsewhere, in processes of their own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

class MovedProvider : public testing::Test {
 protected:
  std::string address(const std::string& name) const { return "ipc://" + (folder_ / name); }
  std::unique_ptr<Running> start(const std::string& store, const std::string& at, const std::string& join = "") {
    std::vector<std::string> arguments{"provider", "--repo", folder_ / store, "--listen", address(at), "--json"};
    if (!join.empty()) arguments.insert(arguments.end(), {"--join", address(join)});
    auto provider = std::make_unique<Running>(arguments, Environment{});
    const Json line = provider->next_json();
    EXPECT_TRUE(line.contains("address")) << provider->next_error_line().value_or("it says nothing");
    return provider;
  }
  static void end(std::unique_ptr<Running>& provider) {
    provider->signal(SIGKILL);
    provider->wait();
    provider.reset();
  }
  Ended repo(const std::string& at, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"repo", "--repo", address(at), "--json"});
    return run(arguments);
  }
  void put_line(const std::string& at, char count) {
    for (char i = 0; i < count; ++i) {
      const std::string file = folder_ / ("in" + std::to_string(puts_) + ".safetensors");
      ++puts_;
      write_file(file, encoded(chain(1, static_cast<char>(puts_), 3)));
      std::vector<std::string> arguments{"put", "net", "--weights", file};
      if (puts_ > 1) arguments.insert(arguments.end(), {"--ancestor", "net@" + std::to_string(puts_ - 1)});
      const Ended ended = repo(at, arguments);
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
    }
  }
  /// All but sockets.
  static void copy_files(const std::string& from, const std::string& to) {
    std::filesystem::create_directory(to);
    for (const auto& entry : std::filesystem::directory_iterator(from)) {
      const std::string target = to + "/" + entry.path().filename().string();
      if (entry.is_directory()) copy_files(entry.path(), target);
      if (entry.is_regular_file()) std::filesystem::copy_file(entry.path(), target);
    }
  }
  /// Reads every version through whoever is at that address.
  void expect_all_there(const std::string& at) {
    for (int i = 1; i <= puts_; ++i) {
      const std::string file = folder_ / "out.safetensors";
      const Ended ended = repo(at, {"get", "net@" + std::to_string(i), "-o", file});
      ASSERT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_EQ(model_in(file).tensors, chain(1, static_cast<char>(i), 3).tensors);
    }
    const Ended verified = repo(at, {"verify"});
    EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  }

  TemporaryFolder folder_;
  int puts_ = 0;
};

TEST_F(MovedProvider, OneThatWasKilledAndJoinsFromElsewhereIsFoundByTheOthers) {
  auto a = start("a", "a1");
  auto b = start("b", "b1", "a1");
  put_line("a1", 6);
  end(b);
  EXPECT_EQ(repo("a1", {"stat"}).exit_code, 5) << "it is away";
  b = start("b", "b2", "a1");
  expect_all_there("a1");
  expect_all_there("b2");
  put_line("a1", 2);
  expect_all_there("b2");
  const Ended repaired = repo("a1", {"verify", "--repair"});
  EXPECT_EQ(repaired.exit_code, 0) << repaired.err;
  EXPECT_EQ(repaired.json()["repaired"], Json::array()) << repaired.out;
}

TEST_F(MovedProvider, OneThatDoesNotJoinFromElsewhereSaysWhereTheOthersLookForIt) {
  auto a = start("a", "a1");
  auto b = start("b", "b1", "a1");
  end(b);
  b = start("b", "b2");
  EXPECT_THAT(b->next_error_line().value_or(""),
              testing::AllOf(testing::HasSubstr(address("b1")), testing::HasSubstr("--join")));
}

/// The provider that has the ancestor comes back from a copy of its folder, which is older than the children at the
/// other provider. A version that nobody knows ends the command before anything is repaired.
TEST_F(MovedProvider, VerifyLooksForTheVersionBeforeItRepairs) {
  auto a = start("a", "a1");
  auto b = start("b", "b1", "a1");
  put_line("a1", 1);
  end(a);
  end(b);
  for (const std::string& store : {std::string("a"), std::string("b")})
    copy_files(folder_ / store, folder_ / ("old-" + store));
  const auto part = [&](const std::string& store) { return run({"repo", "--repo", folder_ / store, "ls", "net"}).out; };
  const bool is_at_a = part("a").find("net") != std::string::npos;
  a = start("a", "a1");
  b = start("b", "b1", "a1");
  const std::string same = folder_ / "in0.safetensors";
  for (int i = 0; i < 16; ++i) {
    const Ended put = repo("a1", {"put", "child" + std::to_string(i), "--weights", same, "--ancestor", "net@1"});
    ASSERT_EQ(put.exit_code, 0) << put.err;
  }
  end(a);
  end(b);
  const std::string home = is_at_a ? "a" : "b";
  std::filesystem::remove_all(folder_ / home);
  std::filesystem::rename(folder_ / ("old-" + home), folder_ / home);
  a = start("a", "a1");
  b = start("b", "b1", "a1");
  EXPECT_EQ(repo("a1", {"verify", "--repair", "net@nosuch"}).exit_code, 3);
  const Ended repaired = repo("a1", {"verify", "--repair", "net@1"});
  EXPECT_EQ(repaired.exit_code, 0) << repaired.err;
  EXPECT_FALSE(repaired.json()["repaired"].empty()) << repaired.out;
}

}  // namespace
}  // namespace freshet::cli_test
