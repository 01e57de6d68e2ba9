// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>

#include "core/gpu/kernels/kernels.h"
#include "core/gpu/kernels/tables.h"
#include "tests/core/gpu/kernels/kernel_lab.h"

namespace freshet::gpu::test {
namespace {

/// Sizes at which something in a kernel changes.
constexpr std::uint64_t kCopySizes[] = {0,  1,  2,   3,   7,   8,    15,   16,   17,        31,           32,
                                        33, 63, 127, 255, 257, 1023, 1024, 1025, 16 * 1024, 64 * 1024 - 1};

struct CopyCase {
  CopyCase(std::uint64_t bytes, std::uint32_t from_at, std::uint32_t to_at) : from(bytes, from_at), to(bytes, to_at) {}
  Range from, to;
};

void copy_all(std::deque<CopyCase>& cases, std::uint32_t blocks, std::uint32_t threads, std::uint64_t seed) {
  std::vector<CopyTensor> table;
  for (CopyCase& each : cases) {
    table.push_back({.from = each.from.data(), .to = each.to.data(), .bytes = each.from.size(), .first_tile = 0});
  }
  const CopyArguments arguments{.tensors = table.data(), .tensor_count = table.size(), .tiles = number_tiles(table)};
  run_kernel(Kernel::kCopy, blocks, threads, arguments, seed);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(cases[i].to.copy(), cases[i].from.copy()) << "tensor " << i << " of " << cases[i].from.size();
    ASSERT_TRUE(cases[i].to.is_surrounded()) << "tensor " << i << " of " << cases[i].from.size();
  }
}

TEST(GpuCopy, EverySizeAtEveryAlignmentIsOneLaunch) {
  FRESHET_GPU_SEEDED(random);
  std::deque<CopyCase> cases;
  for (const std::uint64_t bytes : kCopySizes) {
    for (std::uint32_t at = 0; at < 16; ++at) {
      if (bytes > 2048 && at > 1) break;
      cases.emplace_back(bytes, at, static_cast<std::uint32_t>(random() % 16)).from.fill_from(random);
    }
  }
  copy_all(cases, 3, 64, random());
}

TEST(GpuCopy, BothSidesAtEachPairOfAlignments) {
  FRESHET_GPU_SEEDED(random);
  std::deque<CopyCase> cases;
  for (std::uint32_t from = 0; from < 16; ++from) {
    for (std::uint32_t to = 0; to < 16; ++to) cases.emplace_back(67 + random() % 900, from, to).from.fill_from(random);
  }
  copy_all(cases, 5, 32, random());
}

TEST(GpuCopy, ATensorOfSeveralTilesIsCutAtTheirBorders) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint64_t bytes : {kCopyTileBytes, kCopyTileBytes + 1, 3 * kCopyTileBytes - 1}) {
    std::deque<CopyCase> cases;
    cases.emplace_back(bytes, 0, 0).from.fill_from(random);
    cases.emplace_back(bytes, 3, 3).from.fill_from(random);
    cases.emplace_back(bytes, 6, 2).from.fill_from(random);
    copy_all(cases, 1 + random() % 8, 256, random());
  }
}

TEST(GpuCopy, AnyNumberOfBlocksAndThreadsDoesTheSame) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint32_t threads : {32, 96, 160, 256}) {
    for (const std::uint32_t blocks : {1, 2, 7, 40}) {
      std::deque<CopyCase> cases;
      for (int i = 0; i < 12; ++i) {
        cases.emplace_back(random() % 3000, random() % 16, random() % 16).from.fill_from(random);
      }
      copy_all(cases, blocks, threads, random());
    }
  }
}

TEST(GpuCopy, ATableOfAHundredThousandTensorsIsOneLaunch) {
  FRESHET_GPU_SEEDED(random);
  constexpr std::size_t kTensors = 100'000;
  std::vector<std::uint8_t> from(kTensors * 8);
  for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
  std::vector<std::uint8_t> to(from.size());
  std::vector<CopyTensor> table(kTensors);
  std::vector<std::uint8_t> expected(from.size());
  for (std::size_t i = 0; i < kTensors; ++i) {
    const std::size_t other = kTensors - 1 - i;
    const std::uint64_t bytes = random() % 9;  // Some are empty.
    table[i] = {.from = &from[i * 8], .to = &to[other * 8], .bytes = bytes, .first_tile = 0};
    std::memcpy(&expected[other * 8], &from[i * 8], bytes);
  }
  const CopyArguments arguments{.tensors = table.data(), .tensor_count = kTensors, .tiles = number_tiles(table)};
  run_kernel(Kernel::kCopy, 64, 32, arguments, random());
  EXPECT_TRUE(to == expected);
}

TEST(GpuCopy, AnEmptyTableCopiesNothing) {
  run_kernel(Kernel::kCopy, 3, 64, CopyArguments{.tensors = nullptr, .tensor_count = 0, .tiles = 0}, gpu_seed());
}

TEST(GpuCopy, ATableThatClaimsMoreTilesStaysInsideOfItsRanges) {
  FRESHET_GPU_SEEDED(random);
  CopyCase one(100, 0, 0);
  one.from.fill_from(random);
  CopyTensor tensor{.from = one.from.data(), .to = one.to.data(), .bytes = 100, .first_tile = 0};
  run_kernel(Kernel::kCopy, 2, 64, CopyArguments{.tensors = &tensor, .tensor_count = 1, .tiles = 9}, random());
  EXPECT_EQ(one.to.copy(), one.from.copy());
  EXPECT_TRUE(one.to.is_surrounded());
}

TEST(GpuCopy, FillWritesItsRangeAlone) {
  for (const std::uint64_t bytes : {0, 1, 63, 64, 1000}) {
    Range to(bytes, 5);
    run_kernel(Kernel::kFill, 3, 1024, FillArguments{.to = to.data(), .bytes = bytes, .value = 7}, gpu_seed());
    EXPECT_EQ(to.copy(), std::vector<std::uint8_t>(bytes, 7));
    EXPECT_TRUE(to.is_surrounded());
  }
}

}  // namespace
}  // namespace freshet::gpu::test
