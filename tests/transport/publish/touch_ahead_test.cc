// SPDX-License-Identifier: Apache-2.0
/// How much memory a publisher's arena takes before its versions need it: resident pages, as the kernel counts them.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/arena/arena.h"
#include "tests/transport/publish/byte_model.h"
#include "transport/arena/slab_arena.h"
#include "transport/publish/capture.h"

namespace freshet {
namespace {

constexpr std::uint32_t kAheadTensors = 100;
constexpr std::uint64_t kAheadBytes =
    std::uint64_t{100} * 4096;  // Of a tensor: a growth's least size is a tenth of all.
constexpr std::uint64_t kAheadModelBytes = kAheadTensors * kAheadBytes;

/// Versions whose readers keep up: each has only the two newest.
class AheadRun {
 public:
  explicit AheadRun(double arena_copies) : model_(std::vector<std::uint64_t>(kAheadTensors, kAheadBytes)) {
    capture_ = *Capture::open(
        {.name = "test", .arena_limit_bytes = 4 * kAheadModelBytes, .arena_copies = arena_copies, .lock_memory = false},
        {.on_sealed = [this](SealedCapture sealed) {
          versions_.push_back(std::move(sealed));
          return true;
        }});
    EXPECT_TRUE(capture_->prepare(model_.architecture()));
  }

  /// Changes tensors from the first on, round the model, and captures them: named, or to be found.
  void take(std::uint32_t tensors, Changed::Kind kind) {
    std::vector<std::uint32_t> changed;
    for (std::uint32_t i = 0; i < tensors; ++i) changed.push_back((next_ + i) % kAheadTensors);
    next_ = (next_ + tensors) % kAheadTensors;
    for (const std::uint32_t tensor : changed) model_[tensor][7] ^= static_cast<std::byte>(0x10 + versions_.size());
    const auto views = model_.views();
    ASSERT_TRUE(capture_->capture({.ticket = ++ticket_, .tensors = views, .kind = kind, .indices = changed}));
    ASSERT_TRUE(capture_->wait_idle(std::chrono::seconds(60)));
    for (std::size_t i = 0; i < kAheadTensors; ++i) {
      const Bytes bytes = capture_->bytes(versions_.back().places[i]);
      ASSERT_EQ(std::memcmp(bytes.data(), model_[i].data(), kAheadBytes), 0) << "tensor " << i;
    }
    if (versions_.size() < 3) return;
    std::vector<SegmentIndex> replaced;
    for (const std::uint32_t tensor : versions_[1].changed) replaced.push_back(versions_[0].segments[tensor]);
    capture_->free(replaced);
    versions_.erase(versions_.begin());
  }

  double resident_copies() const {
    std::ptrdiff_t pages = 0;
    for (const SlabReference& slab : capture_->slabs()) {
      void* const seen = ::mmap(nullptr, slab.bytes, PROT_READ, MAP_SHARED, slab.descriptor, 0);
      std::vector<unsigned char> resident(slab.bytes / 4096);
      EXPECT_EQ(::mincore(seen, slab.bytes, resident.data()), 0);
      pages += std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; });
      ::munmap(seen, slab.bytes);
    }
    return static_cast<double>(pages) * 4096 / static_cast<double>(kAheadModelBytes);
  }

  /// So many copies now, and after versions enough to have changed each tensor twice.
  void expect_copies_to_stay(double copies, std::uint32_t tensors, Changed::Kind kind) {
    EXPECT_NEAR(resident_copies(), copies, kNear);
    const double before = resident_copies();
    for (std::uint32_t taken = 0; taken < 2 * kAheadTensors; taken += tensors) take(tensors, kind);
    EXPECT_EQ(resident_copies(), before);
  }

  static constexpr double kNear = 0.12;

 private:
  ByteModel model_;
  std::vector<SealedCapture> versions_;  ///< The last two. Before the capture: its thread uses it.
  std::unique_ptr<Capture> capture_;
  std::uint64_t ticket_ = 0;
  std::uint32_t next_ = 0;
};

constexpr std::uint32_t kAheadTenth = kAheadTensors / 10;

TEST(TouchAhead, ATenthThatIsNamedTakesATenthForEachVersion) {
  AheadRun run(3);
  EXPECT_NEAR(run.resident_copies(), 1, 0.01);
  run.take(kAheadTenth, Changed::Kind::only);
  run.expect_copies_to_stay(1.2, kAheadTenth, Changed::Kind::only);
}

TEST(TouchAhead, AVersionThatChangesMoreTakesItForTheNextToo) {
  AheadRun run(3);
  run.take(kAheadTenth, Changed::Kind::only);
  run.take(kAheadTensors, Changed::Kind::all);
  run.expect_copies_to_stay(3, kAheadTensors, Changed::Kind::all);
}

TEST(TouchAhead, ATenthThatIsNamedFromTheSecondOnTakesNoThirdCopy) {
  AheadRun run(3);
  run.take(kAheadTensors, Changed::Kind::find);
  EXPECT_NEAR(run.resident_copies(), 2, AheadRun::kNear) << "the second would be compared";
  run.expect_copies_to_stay(2, kAheadTenth, Changed::Kind::only);
}

TEST(TouchAhead, AllThatIsFoundTakesAllBeforeTheThirdVersion) {
  AheadRun run(3);
  run.take(kAheadTensors, Changed::Kind::find);
  EXPECT_NEAR(run.resident_copies(), 2, AheadRun::kNear);
  run.take(kAheadTensors, Changed::Kind::find);
  run.expect_copies_to_stay(3, kAheadTensors, Changed::Kind::find);
}

TEST(TouchAhead, OneCopyIsAllThatIsAskedFor) {
  AheadRun run(1);
  run.take(kAheadTensors, Changed::Kind::find);
  EXPECT_NEAR(run.resident_copies(), 1, 0.01);
}

/// An arena grows by at least 4 MiB, as one of a large limit grows by more than a usual slab.
TEST(TouchAhead, ASlabThatIsLargerThanWhatItWasMadeForTakesWhatComesNext) {
  SlabArena arena({.name = "test", .lock_memory = false, .slab_bytes = 1 << 20});
  const std::vector<std::uint64_t> sizes(48, 512 << 10);
  ASSERT_TRUE(arena.prepare(sizes, {.limit_bytes = 64 << 20, .copies = 1}));
  std::uint64_t bytes = 0;
  for (const SlabReference& slab : arena.slabs()) bytes += slab.bytes;
  EXPECT_LE(bytes, std::uint64_t{24 + 4} << 20) << "24 MiB of tensors";
}

}  // namespace
}  // namespace freshet
