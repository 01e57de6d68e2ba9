// SPDX-License-Identifier: Apache-2.0
/// What commands can do while one of three providers is dead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class AwayProvider : public testing::TestWithParam<std::size_t> {};
// The first one numbered all names before the others joined it.
INSTANTIATE_TEST_SUITE_P(Providers, AwayProvider, testing::Values(0, 1),
                         [](const auto& dead) { return dead.param == 0 ? "TheFirst" : "TheSecond"; });

TEST_P(AwayProvider, PutsOfOtherModelsGoOn) {
  const TemporaryFolder folder;
  const std::string dead_name(1, static_cast<char>('a' + GetParam()));
  const auto address = [&](const std::string& name) { return "ipc://" + (folder / name); };
  std::vector<std::unique_ptr<Running>> providers;
  for (const char* name : {"a", "b", "c"}) {
    std::vector<std::string> words{"provider", "--repo",      folder / (std::string(name) + "-store"),
                                   "--listen", address(name), "--json"};
    if (!providers.empty()) words.insert(words.end(), {"--join", address("a")});
    providers.push_back(std::make_unique<Running>(words, Environment{}));
    ASSERT_TRUE(providers.back()->next_json().contains("address"));
  }
  const std::string all = address("a") + "," + address("b") + "," + address("c");
  const std::string file = folder / "in.safetensors";
  write_file(file, encoded(chain(1, 1, 3)));
  providers[GetParam()]->signal(SIGKILL);
  providers[GetParam()]->wait();

  int stored = 0;
  for (int i = 0; i < 16; ++i) {
    const std::string model = "m" + std::to_string(i);
    const Ended put = run({"repo", "--repo", all, "--json", "put", model, "--weights", file});
    EXPECT_THAT(put.exit_code, AnyOf(0, 5)) << put.err;
    if (put.exit_code == 5) {
      EXPECT_THAT(put.err,
                  HasSubstr("no version of " + model + " can be put until the provider that numbers this model"));
      EXPECT_THAT(put.err, HasSubstr(address(dead_name)));
      continue;
    }
    ++stored;
    const std::string out = folder / "out.safetensors";
    const std::string name = model + "@" + std::to_string(put.json()["version"].get<int>());
    const Ended get = run({"repo", "--repo", all, "--json", "get", name, "-o", out});
    EXPECT_EQ(get.exit_code, 0) << get.err;
  }
  EXPECT_GT(stored, 0);

  // Its folder can be looked into, and is not changed behind the others' backs.
  const std::string store = folder / (dead_name + "-store");
  const Ended listed = run({"repo", "--repo", store, "ls"});
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_THAT(listed.err, HasSubstr("one provider of several, and it does not run"));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"alias", "m0@best", "--remove"}, {"retire", "m0@1"}, {"gc"}, {"put", "new", "--weights", file}}) {
    std::vector<std::string> command{"repo", "--repo", store};
    command.insert(command.end(), words.begin(), words.end());
    const Ended refused = run(command);
    EXPECT_EQ(refused.exit_code, 5) << words[0] << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("is one provider of several, and it does not run: start it")) << words[0];
  }
}

}  // namespace
}  // namespace freshet::cli_test
