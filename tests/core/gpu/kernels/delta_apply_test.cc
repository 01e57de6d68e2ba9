// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "tests/core/gpu/kernels/delta_lab.h"

namespace freshet::gpu::test {
namespace {

constexpr DType kTypesOfEachWidth[] = {DType::u8,  DType::bf16, DType::i16, DType::f32,
                                       DType::i32, DType::f64,  DType::u64};

/// What kApply needs to turn `memory` into the target. The payload must outlive it.
ApplyCase apply_case(const DeltaCase& each, const Packed& packed, Range& memory) {
  return {.tensor = {.memory = memory.data(),
                     .elements = delta_elements(each.spec, each.elements),
                     .blocks = bytes_at(packed.blocks.data()),
                     .blocks_bytes = packed.blocks.size(),
                     .first_tile = 0},
          .places = packed.places,
          .result = {}};
}

Range memory_with_base(const DeltaCase& each, std::uint32_t misaligned = 0) {
  Range memory(each.base.size(), misaligned);
  std::memcpy(memory.data(), each.base.data(), each.base.size());
  return memory;
}

void expect_applied(std::deque<DeltaCase>& cases, std::uint32_t blocks, std::uint32_t threads, std::uint32_t misaligned,
                    std::uint64_t seed) {
  const std::vector<Packed> packed = pack_all(cases, {.with_copy = false}, seed);
  std::deque<Range> memories;
  std::vector<ApplyCase> applied;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    memories.push_back(memory_with_base(cases[i], misaligned));
    applied.push_back(apply_case(cases[i], packed[i], memories.back()));
  }
  apply_all(applied, blocks, threads, seed);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i << ": " << cases[i].elements << " of "
                                    << name_of(cases[i].spec.dtype));
    const Result<PayloadPlaces> places = find_places(cases[i].spec, cases[i].elements, packed[i].payload);
    ASSERT_TRUE(places) << places.error().message();
    const Status status = check_applied(*places, applied[i].result);
    ASSERT_TRUE(status) << status.error().message();
    ASSERT_TRUE(memories[i].copy() == cases[i].target.copy());
    ASSERT_TRUE(memories[i].is_surrounded());
  }
}

TEST(GpuApplyWhole, EveryWidthAndDensity) {
  FRESHET_GPU_SEEDED(random);
  for (const DType dtype : kTypesOfEachWidth) {
    if (kIsSlow && dtype != DType::bf16) continue;
    const std::uint64_t chunk = chunk_elements(word_bytes_of(dtype));
    std::deque<DeltaCase> cases;
    for (const double density : {0.0, 0.01, 0.08, 1.0}) {
      for (const std::uint64_t elements : {std::uint64_t{1}, std::uint64_t{17}, chunk, chunk + 1}) {
        cases.emplace_back(dtype, elements, density, random);
      }
    }
    expect_applied(cases, 3, 96, 0, random());
  }
}

TEST(GpuApplyWhole, UnalignedMemory) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint32_t misaligned : {1, 2, 4}) {
    std::deque<DeltaCase> cases;
    for (const DType dtype : kTypesOfEachWidth) cases.emplace_back(dtype, 3000, 0.05, random);
    expect_applied(cases, 2, 64, misaligned, random());
  }
}

TEST(GpuApplyWhole, AnyNumberOfBlocksAndThreadsDoesTheSame) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint32_t threads : {32, 160, 256}) {
    for (const std::uint32_t blocks : {1, 9}) {
      if (kIsSlow && (threads != 160 || blocks == 1)) continue;
      std::deque<DeltaCase> cases;
      cases.emplace_back(DType::bf16, 20'000, 0.02, random);
      cases.emplace_back(DType::f32, 0, 0, random);
      cases.emplace_back(DType::f32, 50, 0.5, random);
      expect_applied(cases, blocks, threads, 0, random());
    }
  }
}

TEST(GpuApplyWhole, AnotherBaseIsFoundByTheSum) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  cases.emplace_back(DType::bf16, 20'000, 0.02, random);
  const Packed packed = pack_all(cases, {}, random())[0];
  Range memory = memory_with_base(cases[0]);
  std::uint64_t place = 0;
  while (std::memcmp(cases[0].base.data() + 2 * place, cases[0].target.data() + 2 * place, 2) == 0) ++place;
  memory.data()[2 * place] ^= 0x10;
  std::vector<ApplyCase> applied = {apply_case(cases[0], packed, memory)};
  apply_all(applied, 2, 64, random());
  const Result<PayloadPlaces> places = find_places(cases[0].spec, cases[0].elements, packed.payload);
  ASSERT_TRUE(places);
  const Status status = check_applied(*places, applied[0].result);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::corrupt);
}

/// Bytes behind which no memory is: a read there ends the process.
class EdgeBytes {
 public:
  explicit EdgeBytes(const std::vector<std::byte>& bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t readable = (bytes.size() + page) / page * page;
    size_ = readable + page;
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory_, MAP_FAILED);
    EXPECT_EQ(mprotect(static_cast<std::byte*>(memory_) + readable, page, PROT_NONE), 0);
    begin_ = static_cast<std::byte*>(memory_) + readable - bytes.size();
    std::copy(bytes.begin(), bytes.end(), begin_);
  }
  ~EdgeBytes() { munmap(memory_, size_); }
  EdgeBytes(const EdgeBytes&) = delete;
  EdgeBytes& operator=(const EdgeBytes&) = delete;
  const std::uint8_t* data() const { return bytes_at(begin_); }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
  std::byte* begin_ = nullptr;
};

/// A delta of one block of 1,000 elements, 90 of them changed, which a test damages.
class GpuApply : public testing::Test {
 protected:
  static constexpr std::uint64_t kElements = 1000;
  static constexpr std::size_t kGapPlane = 12 + 5;

  GpuApply() : random_(gpu_seed()) {
    DeltaCase& each = cases_.emplace_back(DType::bf16, kElements, 0, random_);
    for (std::uint64_t i = 0; i < 90; ++i) each.target.data()[2 * (5 + 4 * i)] ^= 0x21;
    packed_ = pack_all(cases_, {}, random_())[0];
  }

  /// Applies what `damage` left of the payload. Whatever that is, nothing around the memory is written; and what fails
  /// before it is known to be right writes nothing at all.
  void expect_refused(ApplyError error, const std::function<void(Packed& packed)>& damage) {
    SCOPED_TRACE(testing::Message() << "FRESHET_GPU_SEED=" << gpu_seed());
    Packed damaged = packed_;
    damage(damaged);
    const EdgeBytes blocks(damaged.blocks);
    Range memory = memory_with_base(cases_[0]);
    std::vector<ApplyCase> applied = {apply_case(cases_[0], damaged, memory)};
    applied[0].tensor.blocks = blocks.data();
    apply_all(applied, 1, 64, random_());
    EXPECT_EQ(applied[0].result.error, static_cast<std::uint32_t>(error));
    EXPECT_EQ(applied[0].result.changed, 0);
    EXPECT_EQ(memory.copy(), cases_[0].base.copy());
    EXPECT_TRUE(memory.is_surrounded());
    PayloadPlaces places;
    EXPECT_FALSE(check_applied(places, applied[0].result));
  }

  static void set_number(Packed& packed, std::size_t at, std::uint32_t value) {
    std::memcpy(packed.blocks.data() + at, &value, sizeof value);
  }
  std::size_t gap_bytes() const { return packed_.result.changed; }  // No gap is long here.

  std::mt19937_64 random_;
  std::deque<DeltaCase> cases_;
  Packed packed_;
};

TEST_F(GpuApply, APlaceBehindItsBlockIsNotWritten) {
  // The last change is at 361; these gaps lead to 1,000, as far as two of them can, and to far away.
  expect_refused(ApplyError::kPlaces, [&](Packed& packed) {
    for (std::size_t i = 0; i < 3; ++i) packed.blocks[kGapPlane + i] = i < 2 ? std::byte{254} : std::byte{142};
  });
  expect_refused(ApplyError::kPlaces, [&](Packed& packed) {
    for (std::size_t i = 0; i < gap_bytes(); ++i) packed.blocks[kGapPlane + i] = std::byte{254};
  });
}

TEST_F(GpuApply, GapsThatLeadToFewerChangesAreNotApplied) {
  expect_refused(ApplyError::kPlaces, [&](Packed& packed) { packed.blocks[kGapPlane + 40] = std::byte{255}; });
  expect_refused(ApplyError::kPlaces,
                 [&](Packed& packed) { packed.blocks[kGapPlane + gap_bytes() - 1] = std::byte{255}; });
  expect_refused(ApplyError::kPlaces, [&](Packed& packed) {
    for (std::size_t i = 0; i < gap_bytes(); ++i) packed.blocks[kGapPlane + i] = std::byte{255};
  });
}

TEST_F(GpuApply, MoreChangesThanABlockSaysAreNotApplied) {
  // One byte more of gaps than of changes is allowed, for a long gap; here it leads to one change more.
  expect_refused(ApplyError::kPlaces, [&](Packed& packed) {
    packed.blocks.insert(packed.blocks.begin() + kGapPlane, std::byte{0});
    const auto bytes = static_cast<std::uint32_t>(gap_bytes() + 1);
    set_number(packed, 8, bytes);
    set_number(packed, 13, bytes);
  });
}

TEST_F(GpuApply, GapsThatChangeBetweenTheirTwoReadingsWriteNothingOutside) {
  // Another tensor's memory is this payload's gaps: its delta changes them, at some time of the launch, into gaps that
  // lead far outside.
  std::deque<DeltaCase> changers;
  DeltaCase& changer = changers.emplace_back(DType::u8, gap_bytes(), 0, random_);
  std::memcpy(changer.base.data(), packed_.blocks.data() + kGapPlane, gap_bytes());
  std::memset(changer.target.data(), 254, gap_bytes());
  const Packed change = pack_all(changers, {}, random_())[0];
  const std::size_t bytes = 2 * kElements;
  int amid = 0;
  for (int run = 0; run < 200; ++run) {
    SCOPED_TRACE(testing::Message() << "FRESHET_GPU_SEED=" << gpu_seed() << ", run " << run);
    Packed payload = packed_;
    std::vector<std::uint8_t> memory(2 * 0x10000, 0xA5);  // As far as a place can lead.
    std::memcpy(memory.data(), cases_[0].base.data(), bytes);
    Range unused(0, 0);
    std::vector<ApplyCase> applied = {apply_case(cases_[0], payload, unused), apply_case(changer, change, unused)};
    applied[0].tensor.memory = memory.data();
    applied[1].tensor.memory = reinterpret_cast<std::uint8_t*>(payload.blocks.data() + kGapPlane);
    apply_all(applied, 2, 32, random_());
    const bool is_whole = std::memcmp(memory.data(), cases_[0].target.data(), bytes) == 0;
    if (applied[0].result.error == 0 && !is_whole) ++amid;
    ASSERT_EQ(std::count(memory.begin() + bytes, memory.end(), 0xA5), static_cast<long>(memory.size() - bytes));
  }
  EXPECT_GT(amid, 0);
}

TEST_F(GpuApply, ABlockWhoseNumbersLieIsNotApplied) {
  const auto changed = static_cast<std::uint32_t>(packed_.result.changed);
  for (const std::uint32_t claimed : {0U, 1U, changed - 1, changed + 1, 1001U, 0xFFFFFFFFU}) {
    expect_refused(ApplyError::kHead, [&](Packed& packed) { set_number(packed, 4, claimed); });
    expect_refused(ApplyError::kHead, [&](Packed& packed) { set_number(packed, 8, claimed); });
    expect_refused(ApplyError::kHead, [&](Packed& packed) { set_number(packed, 13, claimed); });
    expect_refused(ApplyError::kHead,
                   [&](Packed& packed) { set_number(packed, kGapPlane + gap_bytes() + 1, claimed); });
  }
  for (const std::uint32_t claimed : {0U, 999U, 1001U, 0xFFFFFFFFU}) {
    expect_refused(ApplyError::kTable, [&](Packed& packed) { set_number(packed, 0, claimed); });
  }
}

TEST_F(GpuApply, PlanesThatArePackedAreTheHosts) {
  expect_refused(ApplyError::kForm, [&](Packed& packed) { packed.blocks[12] = std::byte{2}; });
  expect_refused(ApplyError::kForm, [&](Packed& packed) { packed.blocks[kGapPlane + gap_bytes()] = std::byte{1}; });
}

TEST_F(GpuApply, APayloadThatEndsEarlyIsNotReadBehindItsEnd) {
  for (const std::size_t left : {std::size_t{1}, std::size_t{11}, std::size_t{12}, std::size_t{16}, std::size_t{17},
                                 kGapPlane + 50, packed_.blocks.size() - 1}) {
    expect_refused(left < 12 ? ApplyError::kTable : ApplyError::kHead, [&](Packed& packed) {
      packed.blocks.resize(left);
      packed.blocks.shrink_to_fit();
    });
  }
  expect_refused(ApplyError::kHead, [&](Packed& packed) { packed.blocks.push_back(std::byte{0}); });
}

TEST_F(GpuApply, ATableThatLiesIsFound) {
  const BlockPlace wrong[] = {{.offset = 1, .first_element = 0},
                              {.offset = 0, .first_element = 1},
                              {.offset = ~std::uint64_t{0}, .first_element = 0},
                              {.offset = 0, .first_element = ~std::uint64_t{0}},
                              {.offset = packed_.blocks.size(), .first_element = 0}};
  for (const BlockPlace& place : wrong) {
    expect_refused(ApplyError::kTable, [&](Packed& packed) { packed.places[0] = place; });
  }
}

TEST_F(GpuApply, BlocksThatAreNamedTwiceOrOutOfOrderAreFound) {
  std::deque<DeltaCase> cases;
  cases.emplace_back(DType::bf16, 3 * 8192, 0.02, random_);
  const Packed packed = pack_all(cases, {}, random_())[0];
  const std::function<void(std::vector<BlockPlace>&)> lies[] = {
      [](std::vector<BlockPlace>& places) { places[1] = places[0]; },
      [](std::vector<BlockPlace>& places) { std::swap(places[1], places[2]); },
      [](std::vector<BlockPlace>& places) { std::swap(places[1].first_element, places[2].first_element); },
      [](std::vector<BlockPlace>& places) { places[2].offset += 1; },
      [](std::vector<BlockPlace>& places) { places[1].first_element -= 1; },
      [](std::vector<BlockPlace>& places) { places.pop_back(); },
      [](std::vector<BlockPlace>& places) { places.push_back(places.back()); }};
  for (std::size_t i = 0; i < std::size(lies); ++i) {
    SCOPED_TRACE(i);
    Packed told = packed;
    lies[i](told.places);
    Range memory = memory_with_base(cases[0]);
    std::vector<ApplyCase> applied = {apply_case(cases[0], told, memory)};
    apply_all(applied, 2, 64, random_());
    EXPECT_NE(applied[0].result.error, 0);
    EXPECT_TRUE(memory.is_surrounded());
  }
}

TEST_F(GpuApply, OneTensorsDamageIsNoOthers) {
  std::deque<DeltaCase> cases;
  for (int i = 0; i < 3; ++i) cases.emplace_back(DType::f32, 9000, 0.02, random_);
  std::vector<Packed> packed = pack_all(cases, {}, random_());
  packed[1].blocks[kGapPlane] = std::byte{255};
  std::deque<Range> memories;
  std::vector<ApplyCase> applied;
  for (int i = 0; i < 3; ++i) {
    memories.push_back(memory_with_base(cases[i]));
    applied.push_back(apply_case(cases[i], packed[i], memories.back()));
  }
  apply_all(applied, 4, 64, random_());
  EXPECT_EQ(applied[0].result.error, 0);
  EXPECT_EQ(applied[1].result.error, static_cast<std::uint32_t>(ApplyError::kPlaces));
  EXPECT_EQ(applied[2].result.error, 0);
  EXPECT_TRUE(memories[0].copy() == cases[0].target.copy());
  EXPECT_TRUE(memories[2].copy() == cases[2].target.copy());
}

TEST_F(GpuApply, AnyByteThatIsDamagedIsFoundOrHarmsNobodyElse) {
  for (int i = 0; i < 150; ++i) {
    Packed damaged = packed_;
    const std::size_t at = random_() % damaged.blocks.size();
    damaged.blocks[at] ^= static_cast<std::byte>(1 + random_() % 255);
    Range memory = memory_with_base(cases_[0]);
    std::vector<ApplyCase> applied = {apply_case(cases_[0], damaged, memory)};
    apply_all(applied, 1, 32, random_());
    EXPECT_TRUE(memory.is_surrounded());
    const bool is_proved = applied[0].result.error == 0 && applied[0].result.changed == packed_.result.changed &&
                           applied[0].result.sum_low == packed_.result.sum_low &&
                           applied[0].result.sum_high == packed_.result.sum_high;
    EXPECT_FALSE(is_proved) << "byte " << at << " was changed";
  }
}

TEST(GpuApplyHost, APayloadOfTheLibraryIsTheHosts) {
  FRESHET_GPU_SEEDED(random);
  DeltaCase each(DType::bf16, 50'000, 0.01, random);
  const auto payload = encode_delta(each.spec, each.base.bytes(), each.target.bytes(), ~std::uint64_t{0});
  ASSERT_TRUE(payload);
  const Result<PayloadPlaces> places = find_places(each.spec, each.elements, *payload);
  ASSERT_FALSE(places);
  EXPECT_EQ(places.error().code(), Code::unsupported);
  DeltaSpec other = each.spec;
  other.base.tensor += 1;
  EXPECT_EQ(find_places(other, each.elements, *payload).error().code(), Code::failed_precondition);
  EXPECT_EQ(find_places(each.spec, each.elements + 1, *payload).error().code(), Code::failed_precondition);
}

}  // namespace
}  // namespace freshet::gpu::test
