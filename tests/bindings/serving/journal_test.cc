// SPDX-License-Identifier: Apache-2.0
#include "bindings/serving/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "bindings/serving/journal_search.h"
#include "core/base/format.h"
#include "tests/support/temporary_folder.h"

namespace freshet::serving {
namespace {

Manifest manifest_of(VersionNumber number) {
  Manifest manifest;
  manifest.name = {.model = "m", .number = number};
  manifest.step = 10 * number;
  manifest.metrics = {{"loss", 0.5}};
  return manifest;
}

std::string line_for(const std::string& request, VersionNumber number) {
  return journal_line({.request = request, .manifest = manifest_of(number), .newest = number + 2, .served_unix_ns = 5});
}

class JournalSearching : public testing::Test {
 protected:
  JournalSearch search(const std::string& text, const std::string& request) {
    std::ofstream(path()) << text;
    const auto found = search_journal(path(), request);
    EXPECT_TRUE(found) << found.error().message();
    return found ? *found : JournalSearch();
  }
  std::string path() const { return folder_ / "journal"; }

  TemporaryFolder folder_;
};

TEST_F(JournalSearching, FindsTheLastAnswer) {
  const auto found = search(line_for("a", 1) + line_for("b", 2) + line_for("a", 3) + line_for("aa", 4), "a");
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->version, (VersionName{.model = "m", .number = 3}));
  EXPECT_EQ(found.newest->versions_behind, 2u);
  EXPECT_EQ(found.newest->step, 30u);
  EXPECT_EQ(found.newest->served_unix_ns, 5);
  EXPECT_EQ(found.newest->metrics, (Metrics{{"loss", 0.5}}));
  EXPECT_EQ(found.answers, 2u);
  EXPECT_EQ(found.lines, 4u);
  EXPECT_EQ(found.damaged_lines, 0u);
}

TEST_F(JournalSearching, PassesOverDamage) {
  const std::string whole = line_for("a", 1);
  const std::string noise("\x00\xff\x1b{}\x7f", 7);
  std::string text = whole + noise + "\n" + "\n" + R"({"request":"a","model":7})" + "\n";
  text += R"({"request":"a","model":"m","version":0,"served_unix_ns":5,"versions_behind":0,"step":1,"metrics":{}})"
          "\n";
  text += R"({"request":"a","model":"m","version":-1,"served_unix_ns":5,"versions_behind":0,"step":1,"metrics":{}})"
          "\n";
  text += R"({"request":"a","model":"m","version":1,"served_unix_ns":5,"versions_behind":0,"step":1,"metrics":[]})"
          "\n";
  text += R"({"request":"a","model":"../m","version":1,"served_unix_ns":5,"versions_behind":0,"step":1,"metrics":{}})"
          "\n";
  text += std::string(1 << 20, 'x') + "\n" + R"({"request":")" + std::string(1 << 20, 'a') + "\"}\n";
  text += whole.substr(0, whole.size() / 2);  // A full disk cut it, and the next line follows at once.
  text += line_for("a", 2) + whole.substr(0, 20);
  const auto found = search(text, "a");
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->version.number, 2u);
  EXPECT_EQ(found.answers, 2u);
  EXPECT_EQ(found.lines, 2u);
  EXPECT_EQ(found.damaged_lines, 10u);
}

TEST_F(JournalSearching, EveryCutLeavesTheLinesBeforeIt) {
  const std::string first = line_for("a", 1);
  const std::string second = line_for("b", 2);
  for (std::size_t kept = 0; kept <= second.size(); ++kept) {
    const auto found = search(first + second.substr(0, kept), "a");
    ASSERT_TRUE(found.newest) << kept;
    EXPECT_EQ(found.damaged_lines, kept == 0 || kept == second.size() ? 0u : 1u) << kept;
  }
}

TEST_F(JournalSearching, IdsThatLookLikeLinesAreOnlyIds) {
  const std::string hostile = R"(x","model":"n"}{"request":"a","model":"n"})";
  const std::string text = line_for(hostile, 1) + line_for("a\\", 2);
  EXPECT_FALSE(search(text, "a").newest);
  ASSERT_TRUE(search(text, hostile).newest);
  EXPECT_EQ(search(text, hostile).newest->version.number, 1u);
  ASSERT_TRUE(search(text, "a\\").newest);
  EXPECT_EQ(search(text, hostile).damaged_lines, 0u);
}

TEST_F(JournalSearching, ReadsPredecessorsFirst) {
  std::ofstream(path() + ".2") << line_for("a", 1);
  std::ofstream(path() + ".1") << line_for("a", 2);
  EXPECT_EQ(search(line_for("b", 3), "a").newest->version.number, 2u);
  std::filesystem::remove(path());
  EXPECT_EQ(search_journal(path(), "a")->answers, 2u) << "between two files";
}

TEST_F(JournalSearching, AMissingPredecessorHidesNoOlderOne) {
  std::ofstream(path() + ".99") << line_for("a", 1);
  std::ofstream(path() + ".3") << line_for("a", 2);
  const auto found = search(line_for("b", 3), "a");
  ASSERT_TRUE(found.newest);
  EXPECT_EQ(found.newest->version.number, 2u);
  EXPECT_EQ(found.answers, 2u);
  std::filesystem::remove(path());
  EXPECT_EQ(search_journal(path(), "a")->answers, 2u);
}

TEST_F(JournalSearching, PlacesWithoutAJournalAreErrors) {
  EXPECT_EQ(search_journal(path(), "a").error().code(), Code::not_found);
  EXPECT_EQ(search_journal(folder_.path(), "a").error().code(), Code::invalid_argument);
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(search_journal(path(), "a").error().code(), Code::invalid_argument);
}

TEST(JournalLine, IsJsonWhateverTheVersionSays) {
  Manifest manifest = manifest_of(3);
  manifest.metrics = {{"a\"\\\n", 1e300}, {"nan", std::nan("")}, {"inf", std::numeric_limits<double>::infinity()}};
  for (int i = 0; i < 1000; ++i) manifest.metrics.emplace_back(format("metric{:0200}", i), i);
  manifest.tags = {{"schedule", std::string(1 << 20, '"')}, {"other", "x"}};
  const std::string line = journal_line({.request = "r", .manifest = manifest, .newest = 1, .served_unix_ns = 5});
  EXPECT_LE(line.size(), kLineBytesMax);
  EXPECT_TRUE(line.ends_with("}\n"));
  const auto read = nlohmann::json::parse(line);
  EXPECT_EQ(read["metrics"]["a\"\\\n"], 1e300);
  EXPECT_TRUE(read["metrics"]["nan"].is_null());
  EXPECT_TRUE(read["metrics"]["inf"].is_null());
  EXPECT_EQ(read["versions_behind"], 0) << "the server knew an older one";
  EXPECT_EQ(read["left_out"].get<std::size_t>() + read["metrics"].size(), 1003u);
}

TEST(SharedJournal, ThreadsLoseNoLineWhileFilesAreRenamed) {
  constexpr int kLines = 3000;
  const TemporaryFolder folder;
  const std::string path = folder / "journal";
  auto opened = Journal::open({.path = path, .bytes_max = kJournalBytesMin, .files_max = 50});
  ASSERT_TRUE(opened) << opened.error().message();
  Journal& journal = **opened;
  {
    std::vector<std::jthread> writers;
    for (int writer = 0; writer < 4; ++writer) {
      writers.emplace_back([&, writer] {
        const Manifest manifest = manifest_of(1);
        for (int i = 0; i < kLines; ++i) {
          const std::string request = format("{}-{}", writer, i);
          const auto written = journal.record({.request = request, .manifest = manifest, .newest = 1});
          if (!written || !*written) ADD_FAILURE() << request;
        }
      });
    }
  }
  EXPECT_EQ(journal.lost(), 0u);
  EXPECT_TRUE(std::filesystem::exists(path + ".5"));
  const auto found = search_journal(path, format("3-{}", kLines - 1));
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->lines, 4u * kLines);
  EXPECT_EQ(found->damaged_lines, 0u);
  EXPECT_EQ(found->answers, 1u);
}

TEST(SharedJournal, AFileThatCannotBeRenamedTakesLinesOn) {
  const TemporaryFolder folder;
  const std::string path = folder / "journal";
  std::filesystem::create_directories(path + ".1/in_the_way");
  auto opened = Journal::open({.path = path, .bytes_max = kJournalBytesMin, .files_max = 2});
  ASSERT_TRUE(opened);
  const Manifest manifest = manifest_of(1);
  for (int i = 0; i < 2000; ++i) {
    EXPECT_TRUE((*opened)->record({.request = "r", .manifest = manifest}).value_or(false));
  }
  EXPECT_GT(std::filesystem::file_size(path), kJournalBytesMin);
}

}  // namespace
}  // namespace freshet::serving
