// SPDX-License-Identifier: Apache-2.0
/// What `--help` says of each command of `freshet repo`, beside docs/cli/.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

std::string help_of(std::vector<std::string> command) {
  command.push_back("--help");
  const Ended ended = run(command);
  EXPECT_EQ(ended.exit_code, 0) << testing::PrintToString(command);
  return ended.out;
}

/// The commands that a help lists, under its last heading.
std::vector<std::string> commands_in(const std::string& help) {
  std::vector<std::string> names;
  const std::size_t heading = help.find("Subcommands:\n");
  if (heading == std::string::npos) return names;
  static const std::regex kName("\n  ([a-z]+)  ");
  const std::string rest = help.substr(heading);
  for (std::sregex_iterator at(rest.begin(), rest.end(), kName), end; at != end; ++at) names.push_back((*at)[1]);
  return names;
}

std::set<std::string> flags_in(const std::string& text) {
  std::set<std::string> flags;
  static const std::regex kFlag("(^|[^-a-z])(--[a-z][a-z-]*[a-z])");
  for (std::sregex_iterator at(text.begin(), text.end(), kFlag), end; at != end; ++at) flags.insert((*at)[2]);
  return flags;
}

/// All pages of the command, and what another page says of `plan`.
std::string docs() {
  std::string all;
  for (const char* page : {"README", "streaming", "repository", "providers", "json"}) {
    const auto text = read_file(std::string(FRESHET_DOCS "/cli/") + page + ".md");
    EXPECT_TRUE(text) << page;
    all += text.value_or("");
  }
  const std::string schedules = read_file(FRESHET_DOCS "/schedules.md").value_or("");
  const std::size_t plan = schedules.find("## `freshet plan`");
  EXPECT_NE(plan, std::string::npos);
  return plan == std::string::npos ? all : all + schedules.substr(plan);
}

TEST(Help, EachRepoCommandIsInTheDocumentationWithAllItsFlags) {
  const std::string text = docs();
  const std::set<std::string> documented = flags_in(text);
  const std::vector<std::string> commands = commands_in(help_of({"repo"}));
  EXPECT_GE(commands.size(), 22u);
  for (const std::string& command : commands) {
    const std::string help = help_of({"repo", command});
    EXPECT_THAT(help, HasSubstr("example")) << command;
    EXPECT_THAT(text, HasSubstr("repo " + command)) << command;
    std::set<std::string> flags = flags_in(help.substr(0, help.find("\n\n\n")));
    for (const char* everywhere : {"--help", "--json", "--repo"}) {
      EXPECT_TRUE(flags.count(everywhere)) << command << " has no " << everywhere;
      flags.erase(everywhere);
    }
    for (const std::string& flag : flags) EXPECT_TRUE(documented.count(flag)) << command << " " << flag;
  }
}

TEST(Help, EachFlagOfTheDocumentationIsThere) {
  std::set<std::string> known = {"--help", "--version"};
  for (const std::string& command : commands_in(help_of({}))) {
    const std::string help = help_of({command});
    known.merge(flags_in(help));
    for (const std::string& inner : commands_in(help)) known.merge(flags_in(help_of({command, inner})));
  }
  for (const std::string& flag : flags_in(docs())) EXPECT_TRUE(known.count(flag)) << flag;
}

}  // namespace
}  // namespace freshet::cli_test
