// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/level_board.h"

#include <gtest/gtest.h>

#include "core/base/format.h"

namespace freshet::levels {
namespace {

using Kind = LevelNote::Kind;

/// "begin 2 local", "failed 1 group: why", in the order in which the board said it.
std::vector<std::string> words(const std::vector<LevelNote>& notes) {
  static constexpr std::array<std::string_view, 5> kKinds = {"captured", "done", "begin", "reached", "failed"};
  std::vector<std::string> said;
  for (const LevelNote& note : notes) {
    said.push_back(format("{} {} {}{}{}", kKinds[static_cast<std::size_t>(note.kind)], note.version,
                          name_of(note.level), note.error ? ": " : "", note.error ? note.error->message() : ""));
  }
  return said;
}

struct Board {
  explicit Board(WhenBehind when_behind, std::uint32_t ranks = 1)
      : board({.ranks = ranks, .levels = {Level::memory, Level::local, Level::group}, .when_behind = when_behind}) {}
  std::vector<std::string> captured(VersionNumber version, std::uint32_t rank = 0) {
    return words(board.on_note(rank, {.kind = Kind::captured, .version = version, .step = version}));
  }
  std::vector<std::string> done(VersionNumber version, Level level, std::uint32_t rank = 0) {
    return words(board.on_note(rank, {.kind = Kind::done, .version = version, .step = version, .level = level}));
  }
  LevelBoard board;
};

using Words = std::vector<std::string>;

/// A version that is passed over must not be kept any longer, in memory or in a folder: it is told so when the newer
/// one comes, not when the one under way ends.
TEST(LevelBoard, SkipPassesAnOlderVersionOverAsSoonAsANewerOneWaits) {
  Board board(WhenBehind::skip);
  EXPECT_EQ(board.captured(1), (Words{"reached 1 memory", "begin 1 local"}));
  EXPECT_EQ(board.captured(2), (Words{"reached 2 memory"}));
  EXPECT_EQ(board.captured(3),
            (Words{"reached 3 memory", "failed 2 local: passed over by version 3: the level is behind",
                   "failed 2 group: not tried: local was not reached"}));
  EXPECT_EQ(board.done(1, Level::local), (Words{"reached 1 local", "begin 1 group", "begin 3 local"}));
  EXPECT_EQ(board.done(3, Level::local), (Words{"reached 3 local"}));
  EXPECT_EQ(board.captured(4), (Words{"reached 4 memory", "begin 4 local"}));
  EXPECT_EQ(board.done(4, Level::local),
            (Words{"reached 4 local", "failed 3 group: passed over by version 4: the level is behind"}));
  EXPECT_EQ(board.done(1, Level::group), (Words{"reached 1 group", "begin 4 group"}));
  EXPECT_EQ(board.done(4, Level::group), (Words{"reached 4 group"}));
}

TEST(LevelBoard, WithWaitEveryVersionTakesItsTurn) {
  Board board(WhenBehind::wait);
  EXPECT_EQ(board.captured(1), (Words{"reached 1 memory", "begin 1 local"}));
  EXPECT_EQ(board.captured(2), (Words{"reached 2 memory"}));
  EXPECT_EQ(board.captured(3), (Words{"reached 3 memory"}));
  EXPECT_EQ(board.done(1, Level::local), (Words{"reached 1 local", "begin 1 group", "begin 2 local"}));
}

/// A rank that is far ahead of a slow one: what the board cannot remember has failed, for each rank that asks.
TEST(LevelBoard, AVersionOverTheLimitFailsForEachRank) {
  Board board(WhenBehind::skip, 2);
  for (VersionNumber version = 1; version <= LevelBoard::kOpenVersionsMax; ++version) {
    ASSERT_EQ(board.captured(version), Words{});
  }
  const VersionNumber over = LevelBoard::kOpenVersionsMax + 1;
  const std::string why = format("failed {} memory: 1024 versions wait for ranks that did not capture them", over);
  ASSERT_FALSE(board.captured(over).empty());
  EXPECT_EQ(board.captured(1, 1), (Words{"reached 1 memory", "begin 1 local"}));
  // There is room again, and the refused one stays refused: the other rank counts it as failed.
  for (VersionNumber version = 2; version <= LevelBoard::kOpenVersionsMax; ++version) {
    ASSERT_EQ(board.captured(version, 1).front(), format("reached {} memory", version));
  }
  ASSERT_FALSE(board.captured(over, 1).empty());
  EXPECT_EQ(board.captured(over, 1).front(), why);
  EXPECT_EQ(board.captured(over + 1), Words{});
  EXPECT_EQ(board.captured(over + 1, 1).front(), format("reached {} memory", over + 1));
}

TEST(LevelBoard, AVersionThatOneRankCouldNotCaptureFailsAtEachLevel) {
  Board board(WhenBehind::skip, 2);
  EXPECT_EQ(board.captured(1), Words{});
  const LevelNote bad{.kind = Kind::captured, .version = 1, .error = Error(Code::out_of_space, "no memory")};
  EXPECT_EQ(words(board.board.on_note(1, bad)),
            (Words{"failed 1 memory: rank 1: no memory", "failed 1 local: not tried: memory was not reached",
                   "failed 1 group: not tried: memory was not reached"}));
  EXPECT_EQ(words(board.board.on_note(1, bad)), Words{});
}

}  // namespace
}  // namespace freshet::levels
