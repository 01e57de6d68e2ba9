// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/roles/checker.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace freshet::live {
namespace {

using Verdict = Checker::Verdict;

/// A trainer's history written by hand: digests are made up, so whole and torn answers can be told apart at sight.
class CheckerTest : public testing::Test {
 protected:
  CheckerTest() : layout_(*Layout::make({.model_bytes = kModelBytesMin})), checker_(layout_) {
    char name[] = "/tmp/freshet-checker-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~CheckerTest() override { std::filesystem::remove_all(folder_); }

  static JournalRecord record(RecordId id, RecordId parent, std::vector<RowSeen> rows) {
    JournalRecord out{.id = id, .parent = parent, .rows = std::move(rows)};
    for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) out.dense.push_back(dense_digest(id, tensor));
    return out;
  }
  static std::uint64_t dense_digest(RecordId id, std::uint32_t tensor) {
    return id.life * 1'000'000 + id.index * 1000 + tensor;
  }
  std::uint64_t initial(std::uint32_t row) const {
    std::vector<float> values(layout_.row_floats());
    layout_.initial_row(row, values.data());
    return digest_low(bytes_of(values.data(), values.size()));
  }
  static ScoreAnswer answer(std::uint64_t version, RecordId id, std::vector<RowSeen> rows) {
    ScoreAnswer out{.ready = true, .version = version, .record = to_string(id), .rows = std::move(rows)};
    for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) out.dense.push_back(dense_digest(id, tensor));
    return out;
  }

  const Layout layout_;
  Checker checker_;
  std::string folder_;
};

TEST_F(CheckerTest, FindsARowOfAnotherVersion) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {})));
  ASSERT_TRUE(checker_.add(record({1, 2}, {1, 1}, {{5, 50}})));
  ASSERT_TRUE(checker_.add(record({1, 3}, {1, 2}, {{5, 51}, {6, 60}})));
  EXPECT_EQ(checker_.check(answer(1, {1, 1}, {{5, initial(5)}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(2, {1, 2}, {{5, 50}, {6, initial(6)}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(3, {1, 3}, {{5, 51}, {6, 60}, {7, initial(7)}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(2, {1, 2}, {{5, 51}})).verdict, Verdict::torn);
  EXPECT_EQ(checker_.check(answer(3, {1, 3}, {{5, 51}, {6, initial(6)}})).verdict, Verdict::torn);
  EXPECT_EQ(checker_.check(answer(1, {1, 1}, {{7, initial(8)}})).verdict, Verdict::torn);
}

TEST_F(CheckerTest, FindsADenseTensorOfAnotherVersion) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {})));
  ASSERT_TRUE(checker_.add(record({1, 2}, {1, 1}, {})));
  ScoreAnswer mixed = answer(2, {1, 2}, {{1, initial(1)}});
  mixed.dense[kHidden2Weight] = dense_digest({1, 1}, kHidden2Weight);
  const auto finding = checker_.check(mixed);
  EXPECT_EQ(finding.verdict, Verdict::torn);
  EXPECT_NE(finding.reason.find("hidden2.weight"), std::string::npos) << finding.reason;
}

TEST_F(CheckerTest, FollowsARestartedTrainerBackToWhereItResumed) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {{5, 50}})));
  ASSERT_TRUE(checker_.add(record({1, 2}, {1, 1}, {{5, 51}})));
  ASSERT_TRUE(checker_.add(record({1, 3}, {1, 2}, {{5, 52}})));  // Served, but never stored.
  ASSERT_TRUE(checker_.add(record({3, 1}, {1, 2}, {})));         // The second life did not get as far as a version.
  ASSERT_TRUE(checker_.add(record({3, 2}, {3, 1}, {{6, 60}})));
  EXPECT_EQ(checker_.check(answer(3, {1, 3}, {{5, 52}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(4, {3, 1}, {{5, 51}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(5, {3, 2}, {{5, 51}, {6, 60}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(5, {3, 2}, {{5, 52}})).verdict, Verdict::torn);
}

TEST_F(CheckerTest, KnowsNoVersionThatWasNeverWrittenDown) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {})));
  EXPECT_EQ(checker_.check(answer(2, {1, 2}, {{1, initial(1)}})).verdict, Verdict::unknown);
  ScoreAnswer nameless = answer(1, {1, 1}, {{1, initial(1)}});
  nameless.record = "";
  EXPECT_EQ(checker_.check(nameless).verdict, Verdict::torn);
  EXPECT_EQ(checker_.check(answer(1, {1, 1}, {})).verdict, Verdict::torn);
  EXPECT_EQ(checker_.check(answer(1, {1, 1}, {{layout_.rows(), 1}})).verdict, Verdict::torn);
}

TEST_F(CheckerTest, FindsOneNumberForTwoVersions) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {})));
  ASSERT_TRUE(checker_.add(record({1, 2}, {1, 1}, {})));
  EXPECT_EQ(checker_.check(answer(1, {1, 1}, {{1, initial(1)}})).verdict, Verdict::whole);
  EXPECT_EQ(checker_.check(answer(1, {1, 2}, {{1, initial(1)}})).verdict, Verdict::torn);
}

TEST_F(CheckerTest, ForgetsOnlyWhatNobodyCanNeed) {
  ASSERT_TRUE(checker_.add(record({1, 1}, {}, {{5, 1}, {6, 600}})));
  const auto last = static_cast<std::uint32_t>(Checker::kRecordsRemembered * 3);
  for (std::uint32_t index = 2; index <= last; ++index) {
    ASSERT_TRUE(checker_.add(record({1, index}, {1, index - 1}, {{5, index}})));
  }
  EXPECT_EQ(checker_.check(answer(last, {1, last}, {{5, last}, {6, 600}})).verdict, Verdict::whole);
  const auto old = last - static_cast<std::uint32_t>(Checker::kRecordsRemembered) + 1;
  EXPECT_EQ(checker_.check(answer(old, {1, old}, {{5, old}})).verdict, Verdict::whole);
}

TEST_F(CheckerTest, RefusesAHistoryThatDoesNotFit) {
  ASSERT_TRUE(checker_.add(record({2, 1}, {}, {})));
  EXPECT_FALSE(checker_.add(record({2, 1}, {}, {})));
  EXPECT_FALSE(checker_.add(record({2, 3}, {2, 2}, {})));
  EXPECT_FALSE(checker_.add(record({2, 3}, {2, 1}, {})));
  EXPECT_FALSE(checker_.add(record({1, 1}, {2, 1}, {})));
  EXPECT_FALSE(checker_.add(record({0, 1}, {}, {})));
  JournalRecord without = record({2, 2}, {2, 1}, {});
  without.dense.pop_back();
  EXPECT_FALSE(checker_.add(without));
}

TEST_F(CheckerTest, JournalIsReadAsItWasWrittenWhileItGrows) {
  auto writer = JournalWriter::create(folder_, 1);
  ASSERT_TRUE(writer);
  JournalReader reader(folder_);
  std::vector<JournalRecord> read;
  const auto poll = [&] { return reader.poll([&](JournalRecord record) { read.push_back(std::move(record)); }); };
  ASSERT_TRUE(writer->append(record({1, 1}, {}, {{5, 50}, {6, 60}})));
  ASSERT_TRUE(poll());
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].rows, (std::vector<RowSeen>{{5, 50}, {6, 60}}));
  EXPECT_EQ(read[0].dense.size(), std::size_t{kDenseTensors});

  // A life that was killed in the middle of a record; the next one starts a file of its own.
  const std::string unfinished = encode(record({1, 2}, {1, 1}, {{7, 70}})).substr(0, 40);
  std::ofstream(folder_ + "/journal-1", std::ios::app | std::ios::binary) << unfinished;
  auto next = JournalWriter::create(folder_, 2);
  ASSERT_TRUE(next);
  ASSERT_TRUE(next->append(record({2, 1}, {1, 1}, {})));
  ASSERT_TRUE(poll());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[1].id, (RecordId{2, 1}));
  EXPECT_EQ(read[1].parent, (RecordId{1, 1}));
}

TEST_F(CheckerTest, JournalRefusesDamage) {
  const std::string whole = encode(record({1, 1}, {}, {{5, 50}}));
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    std::string_view rest = damaged;
    const auto taken = take_record(rest);
    EXPECT_TRUE(!taken || !taken->has_value()) << "bit " << bit;
  }
}

}  // namespace
}  // namespace freshet::live
