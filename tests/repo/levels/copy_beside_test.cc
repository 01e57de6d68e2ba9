// SPDX-License-Identifier: Apache-2.0
/// Copies that go on beside the loop: of each layer while the next one computes.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <latch>
#include <random>
#include <thread>

#include "core/base/format.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/shards/copy_thread.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/temporary_folder.h"

namespace freshet::levels {
namespace {

using test::alone;
using test::HeldMemory;

constexpr auto kLong = std::chrono::seconds(60);

std::vector<LaidTensor> layers(const std::vector<std::uint64_t>& bytes) {
  std::vector<LaidTensor> all;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    all.push_back({.spec = {.name = format("layer{}", i), .dtype = DType::u8, .shape = {bytes[i]}}, .layout = {}});
  }
  return all;
}

/// Layers with random bytes, and a share for them.
struct Source {
  explicit Source(const std::vector<std::uint64_t>& bytes)
      : cut(TensorTable::of(layers(bytes)), 1, 0), share(fresh_share()), memory(1, 0, layers(bytes)) {
    std::mt19937_64 random(11);
    for (auto& layer : memory.held) {
      for (std::byte& byte : layer) byte = static_cast<std::byte>(random());
    }
  }
  Share fresh_share() const {
    Share made(*ShareMemory::allocate(cut.offsets.back()));
    made.digests.resize(cut.first_chunks.back());
    return made;
  }
  /// A layer without bytes has no piece.
  std::vector<std::byte>& layer(std::size_t piece) { return memory.held[cut.pieces[piece].piece.tensor]; }
  /// As capture_piece() makes it.
  void expect_equal_copies() {
    Share made = fresh_share();
    for (std::size_t piece = 0; piece < cut.pieces.size(); ++piece) {
      capture_piece(cut, made, piece, layer(piece));
      EXPECT_EQ(std::memcmp(share.memory.data() + cut.offsets[piece], layer(piece).data(), layer(piece).size()), 0)
          << "piece " << piece;
    }
    EXPECT_EQ(share.digests, made.digests);
  }

  const ShareCut cut;
  Share share;
  HeldMemory memory;
};

constexpr std::uint64_t kSmall = CopyThread::kSmallBytesMax;

TEST(CopyThread, CopiesAndDigestsLikeTheCaller) {
  const std::vector<std::uint64_t> bytes = {kSmall, kSmall + 1,      3 * kChunkBytes, 0, 5 * kChunkBytes + 17,
                                            1,      kChunkBytes + 1, kSmall - 1};
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    Source source(bytes);
    CopyThread thread(source.cut);
    std::mt19937 random(seed);
    for (std::size_t piece = source.cut.pieces.size(); piece-- > 0;) {
      thread.add(source.share, piece, source.layer(piece));
      if (random() % 2 == 0) thread.finish(random() % source.cut.pieces.size());
    }
    thread.finish_all();
    source.expect_equal_copies();
  }
}

/// The thread stands in its first chunk: the caller goes on, and does the rest of the piece by itself.
TEST(CopyThread, TheCallerGoesOnAndHelpsWhereItWaits) {
  constexpr std::uint64_t kChunks = 4;
  Source source({kChunks * kChunkBytes, kChunks * kChunkBytes});
  const auto caller = std::this_thread::get_id();
  std::latch entered(1);
  std::latch others_are_done(1);
  std::atomic<std::uint64_t> of_caller = 0;
  CopyThread thread(source.cut, [&] {
    if (std::this_thread::get_id() == caller) {
      if (++of_caller == kChunks - 1) others_are_done.count_down();
    } else if (of_caller == 0) {
      entered.count_down();
      others_are_done.wait();
    }
  });
  thread.add(source.share, 1, source.layer(1));
  ASSERT_EQ(of_caller, 0U) << "add() copied";
  entered.wait();
  thread.finish(1);
  EXPECT_EQ(of_caller, kChunks - 1);
  std::memset(source.layer(0).data(), 5, source.layer(0).size());
  thread.add(source.share, 0, source.layer(0));
  thread.finish_all();
  source.expect_equal_copies();
}

TEST(CopyThread, EndsInTheMiddleOfAPiece) {
  Source source({64 * kChunkBytes});
  std::latch entered(1);
  std::promise<void> go_on;
  std::atomic<bool> held_up = false;
  auto thread = std::make_unique<CopyThread>(source.cut, [&, going = go_on.get_future().share()] {
    if (held_up.exchange(true)) return;
    entered.count_down();
    going.wait();
  });
  thread->add(source.share, 0, source.layer(0));
  entered.wait();
  std::thread ending([&] { thread.reset(); });
  go_on.set_value();
  ending.join();
  source.memory.held.clear();  // The address sanitizer tells of a copy that goes on.
}

TEST(CheckpointerBeside, ValuesAreThoseOfTheStepWhereTheNextWriteWaitsForItsCopy) {
  const std::vector<LaidTensor> tensors = layers({3 << 20, 100, 0, (5 << 20) + 9, 200'000, 2 << 20});
  const TemporaryFolder folder;
  HeldMemory memory(1, 0, tensors);
  VersionNumber last = 0;
  constexpr int kSteps = 8;
  {
    auto options = alone(folder.path());
    options.keep[CheckpointLevel::local] = 40;
    options.when_behind = WhenBehind::wait;
    const auto opened = Checkpointer::open(std::move(options), tensors);
    ASSERT_TRUE(opened) << opened.error().message();
    Checkpointer& checkpointer = **opened;
    const auto writable = memory.writable();
    ASSERT_TRUE(checkpointer.restore(writable));
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_TRUE(checkpointer.begin(static_cast<std::uint64_t>(step)));
      for (std::size_t i = tensors.size(); i-- > 0;) {
        std::memset(memory.held[i].data(), step, memory.held[i].size());
        ASSERT_TRUE(checkpointer.capture_beside(i, memory.held[i]));
        if (step % 2 == 0) {
          ASSERT_TRUE(checkpointer.wait_for_copy(i));
          std::memset(memory.held[i].data(), 0xEE, memory.held[i].size());
        }
      }
      const auto captured = checkpointer.end();
      ASSERT_TRUE(captured) << captured.error().message();
      last = captured->version;
      memory.fill(0xDD);
    }
    ASSERT_TRUE(checkpointer.finish(kLong));
  }
  for (int back = 0; back < kSteps; ++back) {
    const auto opened = Checkpointer::open(alone(folder.path()), tensors);
    ASSERT_TRUE(opened);
    const auto writable = memory.writable();
    const auto restored = (*opened)->restore(writable, {.version = last - static_cast<VersionNumber>(back)});
    ASSERT_TRUE(restored && *restored) << restored.error().message();
    EXPECT_TRUE(memory.is_of(kSteps - back)) << "step " << (*restored)->step;
  }
}

TEST(CheckpointerBeside, WrongUseIsRefusedAndTheNextVersionWorks) {
  const std::vector<LaidTensor> tensors = layers({3 << 20, 2 << 20});
  const TemporaryFolder folder;
  HeldMemory memory(1, 0, tensors);
  const auto opened = Checkpointer::open(alone(folder.path()), tensors);
  ASSERT_TRUE(opened);
  Checkpointer& checkpointer = **opened;
  EXPECT_TRUE(checkpointer.wait_for_copy(0)) << "none is under way";
  EXPECT_EQ(checkpointer.wait_for_copy(2).error().code(), Code::invalid_argument);
  EXPECT_EQ(checkpointer.capture_beside(0, memory.held[0]).error().code(), Code::failed_precondition);
  const auto writable = memory.writable();
  ASSERT_TRUE(checkpointer.restore(writable));
  ASSERT_TRUE(checkpointer.begin(1));
  ASSERT_TRUE(checkpointer.capture_beside(0, memory.held[0]));
  EXPECT_EQ(checkpointer.capture(0, memory.held[0]).error().code(), Code::invalid_argument) << "captured twice";
  EXPECT_EQ(checkpointer.capture_beside(1, Bytes(memory.held[1]).first(5)).error().code(), Code::invalid_argument);
  EXPECT_FALSE(checkpointer.end());
  memory.fill(7);
  ASSERT_TRUE(checkpointer.begin(2));
  ASSERT_TRUE(checkpointer.capture_beside(0, memory.held[0]));
  ASSERT_TRUE(checkpointer.capture(1, memory.held[1]));
  const auto captured = checkpointer.end();
  ASSERT_TRUE(captured) << captured.error().message();
  EXPECT_TRUE(checkpointer.wait(captured->version, CheckpointLevel::local, kLong));
  memory.fill(8);
  const auto restored = checkpointer.restore(writable);
  ASSERT_TRUE(restored && *restored);
  EXPECT_TRUE(memory.is_of(7));
}

/// A program that ends in the middle of a version may free its tensors after the checkpointer.
TEST(CheckpointerBeside, EndsInTheMiddleOfAVersion) {
  const std::vector<LaidTensor> tensors = layers({40 << 20});
  for (int round = 0; round < 5; ++round) {
    const TemporaryFolder folder;
    HeldMemory memory(1, 0, tensors);
    const auto opened = Checkpointer::open(alone(folder.path()), tensors);
    ASSERT_TRUE(opened);
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    ASSERT_TRUE((*opened)->begin(1));
    ASSERT_TRUE((*opened)->capture_beside(0, memory.held[0]));
  }
}

}  // namespace
}  // namespace freshet::levels
