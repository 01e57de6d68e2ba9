// SPDX-License-Identifier: Apache-2.0
/// What a lying server can say to a client, and that none of it reaches memory that no sink named.

#include "transport/channel/skeleton/reception.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/conformance/channel_sink.h"
#include "tests/conformance/channel_source.h"
#include "tests/support/refused.h"
#include "transport/channel/fetch_generated.h"

namespace freshet::channel {
namespace {

constexpr std::uint32_t kDense = 0;
constexpr std::uint32_t kDelta = 1;
constexpr std::uint32_t kGrid = 16 << 10;

constexpr Reception::Rules kAnyOrder{.channel = "test", .chunk_bytes_min = 16 << 10, .chunk_bytes_max = 64 << 20};
constexpr Reception::Rules kInOrder{.channel = "test", .chunk_bytes_max = 1 << 20, .in_order = true};

FetchRequest two_pieces() {
  FetchRequest request{.request = 1, .pieces = {{.tensor = 0, .bytes = 40'000}, {.tensor = 1, .bytes = 100}}};
  request.pieces[1].base = SegmentName{};
  return request;
}

Chunk chunk(std::uint64_t offset, std::uint64_t total = 40'000, std::uint32_t piece = 0,
            std::uint32_t encoding = kDense, std::uint32_t grid = kGrid) {
  return {.piece = piece, .encoding = encoding, .total = total, .offset = offset, .chunk_bytes = grid};
}

/// A batch whose answers claim these sizes, with `bytes` behind them in all.
std::vector<std::byte> batch(const std::vector<wire::Answer>& answers, std::size_t bytes) {
  std::vector<std::byte> data;
  for (const wire::Answer& answer : answers) {
    const auto* head = reinterpret_cast<const std::byte*>(&answer);
    data.insert(data.end(), head, head + sizeof answer);
    const std::size_t own = &answer == &answers.back() ? bytes : std::min<std::size_t>(answer.bytes(), bytes);
    data.insert(data.end(), own, std::byte{9});
    bytes -= own;
  }
  if (answers.empty()) data.resize(bytes);
  return data;
}

class LyingServer : public testing::Test {
 protected:
  void expect_lie(const Status& status) {
    ASSERT_TRUE(is_refused(status, Code::corrupt));
    EXPECT_TRUE(reception_.was_lied_to());
    EXPECT_EQ(sink_.faults(), "");
  }
  Status place(const Chunk& header, std::uint64_t length) {
    FRESHET_TRY(reception_.place(header, length));
    return {};
  }
  Status take(const std::vector<wire::Answer>& answers, std::size_t bytes) {
    return reception_.take_batch(answers.size(), batch(answers, bytes));
  }

  CollectingSink sink_;
  Reception reception_{kAnyOrder, two_pieces(), sink_};
};

TEST_F(LyingServer, ChunksThatNothingAskedFor) {
  const std::vector<std::pair<Chunk, std::uint64_t>> lies{
      {chunk(0, 40'000, 2), kGrid},
      {chunk(0, 40'000, ~0u), kGrid},
      {chunk(0, 40'001), kGrid},
      {chunk(0, 39'999), kGrid},
      {chunk(0, ~std::uint64_t{0}), kGrid},
      {chunk(1), kGrid},
      {chunk(kGrid * 4), 1},
      {chunk(40'000), 0},
      {chunk(~std::uint64_t{0} - kGrid + 1), kGrid},
      {chunk(0), kGrid - 1},
      {chunk(0), kGrid + 1},
      {chunk(0), 0},
      {chunk(kGrid * 2), kGrid},
      {chunk(0, 40'000, 0, kDelta), kGrid},
      {chunk(0, 40'000, 0, 2), kGrid},
      {chunk(0, 40'000, 0, kDense, 0), 40'000},
      {chunk(0, 40'000, 0, kDense, 1), 1},
      {chunk(0, 40'000, 0, kDense, ~0u), 40'000},
      {chunk(0, 101, 1, kDelta), 101},
      {chunk(0, 0, 1, kDelta), 0},
  };
  for (const auto& [header, length] : lies) {
    CollectingSink sink;
    Reception reception(kAnyOrder, two_pieces(), sink);
    EXPECT_TRUE(is_refused(reception.place(header, length), Code::corrupt))
        << header.offset << " of " << header.total << " +" << length;
    EXPECT_TRUE(reception.was_lied_to());
    EXPECT_EQ(sink.places(), 0u);
  }
}

TEST_F(LyingServer, AChunkThatComesTwice) {
  ASSERT_TRUE(place(chunk(0), kGrid));
  expect_lie(place(chunk(0), kGrid));
}

TEST_F(LyingServer, AnAnswerThatChangesWhileItComes) {
  ASSERT_TRUE(place(chunk(0), kGrid));
  expect_lie(place(chunk(2 * kGrid, 40'000, 0, kDense, 2 * kGrid), 40'000 - 2 * kGrid));
}

TEST_F(LyingServer, APieceThatComesAgainWhenItIsDone) {
  for (std::uint64_t offset = 0; offset < 40'000; offset += kGrid) {
    ASSERT_TRUE(place(chunk(offset), std::min<std::uint64_t>(kGrid, 40'000 - offset)));
    reception_.arrived(chunk(offset), std::min<std::uint64_t>(kGrid, 40'000 - offset));
  }
  EXPECT_TRUE(sink_.find(1, 0)->done);
  expect_lie(place(chunk(0), kGrid));
}

TEST_F(LyingServer, APieceInABatchAndInChunks) {
  ASSERT_TRUE(take({{1, kDelta, 50}}, 50));
  expect_lie(place(chunk(0, 50, 1, kDelta), 50));
}

TEST_F(LyingServer, APieceInChunksAndInABatch) {
  ASSERT_TRUE(place(chunk(0, 50, 1, kDelta), 50));
  expect_lie(take({{1, kDelta, 50}}, 50));
}

TEST_F(LyingServer, BatchesThatDoNotAddUp) {
  const std::vector<std::pair<std::vector<wire::Answer>, std::size_t>> lies{
      {{}, 10},
      {{{1, kDense, 100}}, 99},
      {{{1, kDense, 100}}, 101},
      {{{1, kDense, 101}}, 101},
      {{{1, kDense, 99}}, 99},
      {{{1, kDelta, ~0u}}, 100},
      {{{1, kDelta, 101}}, 101},
      {{{1, kDelta, 10}, {1, kDelta, 10}}, 20},
      {{{2, kDense, 0}}, 0},
      {{{1, 9, 100}}, 100},
      {{{0, kDense, 100}}, 100},
  };
  for (const auto& [answers, bytes] : lies) {
    CollectingSink sink;
    Reception reception(kAnyOrder, two_pieces(), sink);
    EXPECT_TRUE(is_refused(reception.take_batch(answers.size(), batch(answers, bytes)), Code::corrupt));
    EXPECT_EQ(sink.faults(), "");
  }
  const std::vector<std::byte> short_table(sizeof(wire::Answer));
  for (const std::uint32_t answers : {2u, 4096u, 4097u, 0x1555'5556u, ~0u}) {
    CollectingSink sink;
    Reception reception(kAnyOrder, two_pieces(), sink);
    EXPECT_FALSE(reception.take_batch(answers, short_table)) << answers;
  }
}

TEST_F(LyingServer, ChunksInAnyOrderMakeOnePiece) {
  const std::vector<std::byte> content = seeded_bytes(40'000, 5);
  std::vector<std::uint64_t> told;
  for (const std::uint64_t offset : {std::uint64_t{2 * kGrid}, std::uint64_t{0}, std::uint64_t{kGrid}}) {
    const std::uint64_t length = std::min<std::uint64_t>(kGrid, 40'000 - offset);
    const auto placed = reception_.place(chunk(offset), length);
    ASSERT_TRUE(placed);
    std::copy_n(content.begin() + static_cast<std::ptrdiff_t>(offset), length, placed->begin());
    reception_.arrived(chunk(offset), length);
    told.push_back(sink_.find(1, 0)->there);
  }
  EXPECT_EQ(told, (std::vector<std::uint64_t>{0, kGrid, 40'000})) << "only what is there without a gap is told";
  EXPECT_TRUE(sink_.find(1, 0)->content() == content);
  EXPECT_FALSE(reception_.is_complete());
  ASSERT_TRUE(take({{1, kDense, 100}}, 100));
  EXPECT_TRUE(reception_.is_complete());
  EXPECT_EQ(reception_.bytes(), 40'100u);
  EXPECT_EQ(sink_.faults(), "");
}

// Whatever comes, what the sink was promised holds; the guards around its memory are among it.
TEST_F(LyingServer, RandomWords) {
  constexpr std::uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const auto pick = [&](std::vector<std::uint64_t> values) { return values[random() % values.size()]; };
  for (int round = 0; round < 3000; ++round) {
    CollectingSink sink;
    Reception reception(kAnyOrder, two_pieces(), sink);
    for (int i = 0; i < 12 && !reception.was_lied_to(); ++i) {
      const auto piece = static_cast<std::uint32_t>(pick({0, 0, 0, 1, 2}));
      const auto encoding = static_cast<std::uint32_t>(pick({kDense, kDense, kDelta, 3}));
      if (random() % 3 == 0) {
        const auto size = static_cast<std::uint32_t>(pick({0, 1, 100, 100, 101, 40'000}));
        const auto data = batch({{piece, encoding, size}}, pick({0, 1, 100, 100, 40'000}));
        [[maybe_unused]] const Status taken = reception.take_batch(1, data);
        continue;
      }
      const std::uint64_t total = pick({40'000, 40'000, 40'000, 100, 39'999});
      const std::uint64_t offset = pick({0, kGrid, 2 * kGrid, 2 * kGrid, 3 * kGrid, 1});
      const std::uint64_t length = pick({kGrid, kGrid, 40'000 - 2 * kGrid, 100, 0});
      const Chunk header = chunk(offset, total, piece, encoding);
      const auto placed = reception.place(header, length);
      if (!placed) continue;
      ASSERT_EQ(placed->size(), length);
      std::fill(placed->begin(), placed->end(), std::byte{1});
      reception.arrived(header, length);
    }
    ASSERT_EQ(sink.faults(), "") << "round " << round;
  }
}

/// Its memory is of a kind that no channel takes yet.
class ElsewhereSink final : public FetchSink {
 public:
  Result<Place> place(std::uint64_t, std::size_t, Encoding, std::uint64_t bytes) override {
    return Place(MutableBytes(memory_).first(bytes), static_cast<MemoryKind>(7));
  }
  void on_bytes(std::uint64_t, std::size_t, std::uint64_t) override { ADD_FAILURE(); }
  void on_piece_done(std::uint64_t, std::size_t) override { ADD_FAILURE(); }
  void on_request_done(std::uint64_t, Status) override {}

 private:
  std::vector<std::byte> memory_ = std::vector<std::byte>(40'000);
};

TEST(Reception, RefusesMemoryThatItsChannelDoesNotTake) {
  ElsewhereSink sink;
  Reception reception(kAnyOrder, two_pieces(), sink);
  EXPECT_TRUE(is_refused(reception.place(chunk(0), kGrid), Code::unsupported));
  EXPECT_FALSE(reception.was_lied_to());
}

class ServerInOrder : public ::testing::Test {
 protected:
  static Chunk next(std::uint32_t piece, std::uint64_t total, std::uint64_t offset, std::uint32_t encoding = 0) {
    return {.piece = piece, .encoding = encoding, .total = total, .offset = offset};
  }
  Status take(const Chunk& chunk, std::size_t length) {
    FRESHET_ASSIGN(const MutableBytes memory, reception_.place(chunk, length));
    EXPECT_EQ(memory.size(), length);
    std::ranges::fill(memory, std::byte{9});
    reception_.arrived(chunk, length);
    return {};
  }

  CollectingSink sink_;
  Reception reception_{
      kInOrder,
      {.request = 1, .pieces = {{.bytes = 100}, {.bytes = 50}, {.bytes = 60, .base = SegmentName{}}, {.bytes = 0}}},
      sink_};
};

TEST_F(ServerInOrder, TakesWhatWasAskedFor) {
  EXPECT_TRUE(take(next(0, 100, 0), 70));
  EXPECT_TRUE(take(next(0, 100, 70), 30));
  EXPECT_TRUE(reception_.take_batch(3, batch({{1, 0, 50}, {2, 1, 20}, {3, 0, 0}}, 70)));
  EXPECT_TRUE(reception_.is_complete());
  EXPECT_EQ(reception_.bytes(), 170U);
  EXPECT_EQ(sink_.faults(), "");
}

TEST_F(ServerInOrder, RefusesLies) {
  ASSERT_TRUE(take(next(0, 100, 0), 40));
  const auto lies = [&](const Status& status) {
    return !status && status.error().code() == Code::corrupt && reception_.was_lied_to();
  };
  EXPECT_TRUE(lies(take(next(0, 100, 0), 40))) << "again";
  EXPECT_TRUE(lies(take(next(0, 100, 60), 40))) << "a gap";
  EXPECT_TRUE(lies(take(next(0, 100, 40), 61))) << "past the end";
  EXPECT_TRUE(lies(take(next(0, 100, 40), 0))) << "nothing";
  EXPECT_TRUE(lies(take(next(0, 101, 40), 10))) << "another size";
  EXPECT_TRUE(lies(take(next(1, 50, 0), 50))) << "another piece in between";
  EXPECT_TRUE(lies(reception_.take_batch(1, batch({{1, 0, 50}}, 50))));
  ASSERT_TRUE(take(next(0, 100, 40), 60));
  EXPECT_TRUE(lies(take(next(0, 100, 0), 100))) << "a piece twice";
  EXPECT_TRUE(lies(take(next(4, 1, 0), 1))) << "no such piece";
  EXPECT_TRUE(lies(take(next(1, 50, 10), 40))) << "from its middle";
  EXPECT_TRUE(lies(take(next(1, 50, 0, 1), 50))) << "a delta without a base";
  EXPECT_TRUE(lies(take(next(2, 61, 0, 1), 61))) << "a delta larger than the piece";
  EXPECT_TRUE(lies(take(next(1, 50, 0, 2), 50))) << "an unknown encoding";
  EXPECT_TRUE(lies(reception_.take_batch(0, {})));
  EXPECT_TRUE(lies(reception_.take_batch(5000, std::vector<std::byte>(100'000, std::byte{9}))));
  EXPECT_TRUE(lies(reception_.take_batch(1, batch({{1, 0, 50}}, 49))));
  EXPECT_TRUE(lies(reception_.take_batch(1, std::vector<std::byte>(3, std::byte{9}))));
  EXPECT_EQ(sink_.faults(), "");
}

}  // namespace
}  // namespace freshet::channel
