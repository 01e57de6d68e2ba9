// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/core/gpu/kernels/delta_lab.h"

namespace freshet::gpu::test {
namespace {

constexpr DType kEveryDType[] = {DType::f64,     DType::f32,     DType::f16,     DType::bf16, DType::f8_e4m3,
                                 DType::f8_e5m2, DType::i64,     DType::i32,     DType::i16,  DType::i8,
                                 DType::u64,     DType::u32,     DType::u16,     DType::u8,   DType::boolean,
                                 DType::f4,      DType::f6_e2m3, DType::f8_e8m0, DType::c64};

/// The library's decoder is the oracle: it makes the target of the base, and proves each sum and count on its way.
void expect_payload(const DeltaCase& each, const Packed& packed) {
  SCOPED_TRACE(testing::Message() << each.elements << " elements of " << name_of(each.spec.dtype));
  ASSERT_EQ(packed.result.changed, each.changed());
  std::vector<std::uint8_t> memory = each.base.copy();
  const Result<DeltaInfo> applied = apply_delta(each.spec, packed.payload, std::as_writable_bytes(std::span(memory)));
  ASSERT_TRUE(applied) << applied.error().message();
  ASSERT_EQ(applied->changed_elements, packed.result.changed);
  ASSERT_TRUE(memory == each.target.copy());
  const Result<DeltaInfo> reverted = revert_delta(each.spec, packed.payload, std::as_writable_bytes(std::span(memory)));
  ASSERT_TRUE(reverted) << reverted.error().message();
  ASSERT_TRUE(memory == each.base.copy());
  const Result<PayloadPlaces> places = find_places(each.spec, each.elements, packed.payload);
  ASSERT_TRUE(places) << places.error().message();
  ASSERT_EQ(places->places.size(), packed.places.size());
  for (std::size_t i = 0; i < packed.places.size(); ++i) {
    ASSERT_EQ(places->places[i].offset, packed.places[i].offset) << "block " << i;
    ASSERT_EQ(places->places[i].first_element, packed.places[i].first_element) << "block " << i;
  }
}

void expect_packed(std::deque<DeltaCase>& cases, const PackShape& shape, std::uint64_t seed) {
  const std::vector<Packed> packed = pack_all(cases, shape, seed);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i);
    ASSERT_NO_FATAL_FAILURE(expect_payload(cases[i], packed[i]));
    ASSERT_TRUE(!shape.with_copy || cases[i].fresh.copy() == cases[i].target.copy());
  }
}

TEST(GpuPack, EveryTypeAroundEachBorder) {
  FRESHET_GPU_SEEDED(random);
  for (const DType dtype : kEveryDType) {
    if (kIsSlow && dtype != DType::bf16) continue;
    const std::uint64_t chunk = chunk_elements(word_bytes_of(dtype));
    std::deque<DeltaCase> cases;
    for (const std::uint64_t elements : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{15}, std::uint64_t{16},
                                         std::uint64_t{17}, std::uint64_t{1023}, chunk - 1, chunk, chunk + 1}) {
      cases.emplace_back(dtype, elements, 0.02, random);
    }
    expect_packed(cases, {}, random());
  }
}

TEST(GpuPack, EveryDensityFromNothingToAll) {
  FRESHET_GPU_SEEDED(random);
  for (const double density : {0.0, 0.0005, 0.01, 0.08, 0.5, 1.0}) {
    std::deque<DeltaCase> cases;
    for (const DType dtype : {DType::bf16, DType::f32, DType::u8, DType::f64}) {
      cases.emplace_back(dtype, chunk_elements(word_bytes_of(dtype)) + 100, density, random);
    }
    expect_packed(cases, {.blocks = 4, .threads = kIsSlow ? 64U : 256U}, random());
  }
}

TEST(GpuPack, LongGapsAndLonelyChanges) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  // At the block's ends, and 254 to 256, 510 and 511 elements behind each other.
  const std::uint64_t places[][4] = {{0, 255, 511, 768},    {254, 509, 765, 1021},     {255, 511, 1022, 1534},
                                     {0, 4095, 8190, 8191}, {8191, 8192, 8193, 16383}, {510, 1021, 1533, 9000}};
  for (const auto& four : places) {
    DeltaCase& each = cases.emplace_back(DType::bf16, 16384, 0, random);
    for (const std::uint64_t place : four) each.target.data()[2 * place] ^= 0x55;
  }
  cases.emplace_back(DType::u8, 8192, 0, random).target.data()[8191] ^= 1;
  expect_packed(cases, {.blocks = 2, .threads = 128}, random());
}

TEST(GpuPack, NotANumberIsExactToTheBit) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    DeltaCase& each = cases.emplace_back(dtype, 4000, 0.0, random);
    // NaNs with payloads, infinities and zeros of both signs, from and to each other.
    for (std::uint64_t i = 0; i < each.elements; ++i) {
      for (Range* side : {&each.base, &each.target}) {
        std::uint8_t* const top = side->data() + (i + 1) * each.width;
        const std::uint8_t sign = random() % 2 == 0 ? 0x80 : 0;
        const std::uint64_t kind = random() % 4;
        if (kind == 0) continue;
        std::memset(top - each.width, kind == 3 ? 0 : static_cast<int>(random() % 256), each.width);
        top[-1] = static_cast<std::uint8_t>(sign | (kind == 3 ? 0 : 0x7F));
        if (kind != 3) top[-2] = static_cast<std::uint8_t>(top[-2] | 0xF0);
      }
    }
  }
  expect_packed(cases, {}, random());
}

TEST(GpuPack, UnalignedViews) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64}) {
    for (const std::uint32_t at : {1, 2, 4, 8, 15}) {
      cases.emplace_back(dtype, chunk_elements(word_bytes_of(dtype)) + 33, 0.03, random, at);
    }
  }
  expect_packed(cases, {}, random());
}

TEST(GpuPack, AnyNumberOfBlocksAndWarpsDoesTheSame) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint32_t threads : {32, 96, 256}) {
    for (const std::uint32_t blocks : {1, 7}) {
      if (kIsSlow && (threads != 96 || blocks == 1)) continue;
      std::deque<DeltaCase> cases;
      for (const double density : {0.3, 0.01, 0.0}) cases.emplace_back(DType::bf16, 20'000, density, random);
      expect_packed(cases, {.blocks = blocks, .threads = threads}, random());
    }
  }
}

TEST(GpuPack, ManyTilesFindTheirOffsetsInAnyOrder) {
  FRESHET_GPU_SEEDED(random);
  for (int round = 0; round < (kIsSlow ? 2 : 4); ++round) {
    std::deque<DeltaCase> cases;
    cases.emplace_back(DType::u8, (kIsSlow ? 20 : 90) * 8192, 0.001, random);
    expect_packed(cases, {.blocks = 6, .threads = 32, .with_copy = round % 2 == 0}, random());
  }
}

TEST(GpuPack, ManyTensorsAreOneLaunch) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  for (int i = 0; i < (kIsSlow ? 60 : 800); ++i)
    cases.emplace_back(kEveryDType[random() % 15], random() % 60, 0.2, random);
  expect_packed(cases, {.blocks = 9, .threads = 32}, random());
}

TEST(GpuPack, TheTargetsDigestsComeWithThePass) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  for (const std::uint64_t elements : {0, 1, 240, 241, 1000, 1024, 1025, 8191, 8192, 8193, 8192 + 100, 20'000}) {
    for (const DType dtype : {DType::u8, DType::bf16, DType::f64}) {
      cases.emplace_back(dtype, elements, 0.01, random, static_cast<std::uint32_t>(random() % 3));
    }
    if (kIsSlow && elements > 1025) break;
  }
  std::vector<Digest> digests;
  const PackShape shape{.blocks = 5, .threads = 96, .digests = &digests};
  expect_packed(cases, shape, random());
  ASSERT_EQ(digests.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(to_hex(digests[i]), to_hex(digest_of(cases[i].target.bytes()))) << "tensor " << i;
  }
}

TEST(GpuPack, ABaseIsUpdatedInPlaceOnceItsChangesArePacked) {
  FRESHET_GPU_SEEDED(random);
  for (const double density : {0.0, 0.01, 1.0}) {
    std::deque<DeltaCase> cases;
    for (const DType dtype : {DType::u8, DType::bf16, DType::f64}) {
      const std::uint64_t elements = (kIsSlow ? 1 : 2) * chunk_elements(word_bytes_of(dtype)) + 33;
      cases.emplace_back(dtype, elements, density, random, static_cast<std::uint32_t>(random() % 2));
    }
    std::vector<Digest> digests;
    expect_packed(cases, {.blocks = 4, .threads = kIsSlow ? 64U : 256U, .in_place = true, .digests = &digests},
                  random());
    for (std::size_t i = 0; i < cases.size(); ++i) EXPECT_EQ(digests[i], digest_of(cases[i].target.bytes()));
  }
}

TEST(GpuPack, InPlaceTheTargetIsThereWhereNothingIsPackedOrHasRoom) {
  FRESHET_GPU_SEEDED(random);
  for (const bool packs : {false, true}) {
    std::deque<DeltaCase> cases;
    for (const double density : {0.0, 0.1, 1.0}) cases.emplace_back(DType::bf16, 20'000, density, random);
    std::vector<Digest> digests;
    const PackShape shape{.blocks = 5, .in_place = true, .packs = packs, .digests = &digests, .room = 500};
    const std::vector<Packed> packed = pack_all(cases, shape, random());
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(packed[i].result.changed, cases[i].changed());
      EXPECT_EQ(packed[i].payload.empty(), !packs || i > 0);
      EXPECT_EQ(packed[i].result.bytes == 0, !packs);
      EXPECT_TRUE(cases[i].fresh.copy() == cases[i].target.copy());
      EXPECT_EQ(digests[i], digest_of(cases[i].target.bytes()));
    }
  }
}

TEST(GpuPack, WithoutASegmentToFillNothingIsCopied) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  cases.emplace_back(DType::f32, 9000, 0.05, random);
  const std::vector<std::uint8_t> before = cases[0].fresh.copy();
  expect_packed(cases, {.with_copy = false}, random());
  EXPECT_EQ(cases[0].fresh.copy(), before);
}

TEST(GpuPack, ADeltaThatIsTooLongSaysSoAndStaysInItsRoom) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  cases.emplace_back(DType::bf16, 5 * 8192, 0.3, random);
  const std::uint64_t whole = pack_all(cases, {}, random())[0].result.bytes;
  for (const std::uint64_t room : {std::uint64_t{0}, std::uint64_t{11}, whole / 2, whole - 1}) {
    const std::vector<Packed> packed = pack_all(cases, {.room = room}, random());
    EXPECT_EQ(packed[0].result.bytes, whole);
    EXPECT_EQ(packed[0].result.changed, cases[0].changed());
    EXPECT_TRUE(packed[0].payload.empty());
    EXPECT_EQ(cases[0].fresh.copy(), cases[0].target.copy());
  }
  EXPECT_FALSE(pack_all(cases, {.room = whole}, random())[0].payload.empty());
}

TEST(GpuPack, TheSeedChangesNoBit) {
  FRESHET_GPU_SEEDED(random);
  std::deque<DeltaCase> cases;
  cases.emplace_back(DType::bf16, (kIsSlow ? 20'000 : 70'000), 0.02, random);
  const std::vector<std::byte> payload = pack_all(cases, {.blocks = 5}, 3)[0].payload;
  for (int i = 0; i < (kIsSlow ? 1 : 4); ++i)
    EXPECT_EQ(pack_all(cases, {.blocks = 5}, 3 * random())[0].payload, payload);
}

}  // namespace
}  // namespace freshet::gpu::test
