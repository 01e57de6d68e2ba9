// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/options.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace freshet::live {
namespace {

ParsedCommandLine parse(std::vector<std::string> words) {
  words.insert(words.begin(), "live_run");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return parse_command_line(static_cast<int>(pointers.size()), pointers.data());
}

TEST(Scale, TakesSizesAndMultiples) {
  EXPECT_EQ(parse_scale("600MB"), 600'000'000u);
  EXPECT_EQ(parse_scale("4GB"), 4'000'000'000u);
  EXPECT_EQ(parse_scale("4gib"), std::uint64_t{4} << 30);
  EXPECT_EQ(parse_scale("1.5G"), 1'500'000'000u);
  EXPECT_EQ(parse_scale("75"), 600'000'000u);
  EXPECT_EQ(parse_scale("75x"), 600'000'000u);
  EXPECT_EQ(parse_scale("1"), kModelBytesDefault);
  for (const char* bad : {"", "big", "MB", "-1", "0", "5GB", "1e300", "nan", "inf", "600 MB", "600MBs", "10KB"}) {
    EXPECT_FALSE(parse_scale(bad)) << bad;
  }
}

TEST(CommandLine, HasTheDefaultsThatTheHelpTells) {
  const auto parsed = parse({});
  ASSERT_TRUE(parsed.command_line);
  EXPECT_EQ(parsed.command_line->run.seconds, 30);
  EXPECT_EQ(parsed.command_line->run.versions, 0u);
  EXPECT_EQ(parsed.command_line->run.servers, 2u);
  EXPECT_EQ(parsed.command_line->run.model_bytes, kModelBytesDefault);
}

TEST(CommandLine, VersionsAloneHaveNoTimeLimit) {
  EXPECT_EQ(parse({"--versions", "5"}).command_line->run.seconds, 0);
  EXPECT_EQ(parse({"--versions=5", "--seconds=7"}).command_line->run.seconds, 7);
}

TEST(CommandLine, FreezeStandsAloneOrWithAStep) {
  const auto standing = parse({"--freeze", "--json"});
  ASSERT_TRUE(standing.command_line);
  EXPECT_TRUE(standing.command_line->run.json);
  EXPECT_EQ(standing.command_line->run.freeze_after, RunOptions().freeze_after);
  EXPECT_EQ(parse({"--freeze", "0"}).command_line->run.freeze_after, 0u);
  EXPECT_EQ(parse({"--freeze=25"}).command_line->run.freeze_after, 25u);
}

TEST(CommandLine, TakesSeveralTexts) {
  EXPECT_EQ(parse({"--text", "a", "b", "--json"}).command_line->run.text, (std::vector<std::string>{"a", "b"}));
}

TEST(CommandLine, WrongUsageIsExitCodeTwo) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{{"--nonsense"},
                                                                                     {"--rate", "0"},
                                                                                     {"--rate", "x"},
                                                                                     {"--seconds", "-3"},
                                                                                     {"--servers", "0"},
                                                                                     {"--schedule", "never"},
                                                                                     {"--schedule", "every:0"},
                                                                                     {"--scale", "huge"},
                                                                                     {"--role", "king"},
                                                                                     {"--role", "load"},
                                                                                     {"stray"}}) {
    testing::internal::CaptureStderr();
    const auto parsed = parse(words);
    EXPECT_FALSE(testing::internal::GetCapturedStderr().empty()) << words[0];
    EXPECT_FALSE(parsed.command_line) << words[0];
    EXPECT_EQ(parsed.exit_code, 2) << words[0];
  }
}

TEST(Config, IsReadAsItWasWritten) {
  char name[] = "/tmp/freshet-config-XXXXXX";
  const std::string folder = ::mkdtemp(name);
  RunConfig config{.options = {.seconds = 7.5,
                               .versions = 8,
                               .rate = 12.5,
                               .servers = 3,
                               .schedule = "fixed",
                               .pace = 30,
                               .model_bytes = 1 << 20,
                               .text = {"a b", "c"},
                               .freeze_after = 9,
                               .seed = ~std::uint64_t{0},
                               .deadline_ms = 11,
                               .make_torn_read = true},
                   .repository = "/r"};
  ASSERT_TRUE(write_config(folder, config));
  const auto read = read_config(folder);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->options.seconds, 7.5);
  EXPECT_EQ(read->options.versions, 8u);
  EXPECT_EQ(read->options.rate, 12.5);
  EXPECT_EQ(read->options.schedule, "fixed");
  EXPECT_EQ(read->options.pace, 30);
  EXPECT_EQ(read->options.model_bytes, 1u << 20);
  EXPECT_EQ(read->options.freeze_after, 9u);
  EXPECT_EQ(read->options.deadline_ms, 11u);
  EXPECT_TRUE(read->options.make_torn_read);
  EXPECT_EQ(read->options.servers, 3u);
  EXPECT_EQ(read->options.text, config.options.text);
  EXPECT_EQ(read->options.seed, config.options.seed);
  EXPECT_EQ(read->repository, "/r");
  std::ofstream(folder + "/run.json") << R"({"rate": "fast"})";
  EXPECT_FALSE(read_config(folder));
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(read_config(folder));
}

}  // namespace
}  // namespace freshet::live
