// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <deque>

#include "core/base/digest.h"
#include "core/gpu/kernels/kernels.h"
#include "core/gpu/kernels/tables.h"
#include "tests/core/gpu/kernels/delta_lab.h"

namespace freshet::gpu::test {
namespace {

/// The digests of all tensors by the kernels, and what is the host's by the library.
std::vector<Digest> digests_by_kernels(const DigestPlan& plan, std::uint32_t blocks, std::uint32_t threads,
                                       std::uint64_t seed) {
  const std::span<const DigestPart> parts = plan.device_parts();
  std::vector<std::uint64_t> sums(plan.tiles() * kDigestSumsOfBlock);
  run_kernel(Kernel::kDigestSums, blocks, threads,
             DigestSumsArguments{
                 .parts = parts.data(), .part_count = parts.size(), .tiles = plan.tiles(), .sums = sums.data()},
             seed);
  return digests_of(plan, sums, blocks, threads, seed + 1);
}

void expect_library_digests(std::deque<Range>& tensors, std::uint32_t blocks, std::uint32_t threads,
                            std::uint64_t seed) {
  DigestPlan plan;
  for (const Range& tensor : tensors) plan.add(tensor.data(), tensor.size());
  const std::vector<Digest> digests = digests_by_kernels(plan, blocks, threads, seed);
  ASSERT_EQ(digests.size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(to_hex(digests[i]), to_hex(digest_of(tensors[i].bytes())))
        << "tensor " << i << " of " << tensors[i].size() << " bytes";
  }
}

TEST(GpuDigest, EverySizeAroundBlocksAndStripes) {
  FRESHET_GPU_SEEDED(random);
  std::deque<Range> tensors;
  for (const std::uint64_t bytes :
       {0,    1,    15,   16,   17,   128,  239,  240,  241,      255,          256,           257,
        303,  304,  305,  320,  511,  512,  513,  959,  960,      961,          1023,          1024,
        1025, 1087, 1088, 1089, 2047, 2048, 2049, 3072, 9 * 1024, 9 * 1024 + 1, 10 * 1024 - 1, 33 * 1024 + 77}) {
    tensors.emplace_back(bytes, 0).fill_from(random);
  }
  expect_library_digests(tensors, 3, 64, random());
}

TEST(GpuDigest, AnyAddressWillDo) {
  FRESHET_GPU_SEEDED(random);
  std::deque<Range> tensors;
  for (std::uint32_t at = 0; at < 16; ++at) {
    tensors.emplace_back(2048 + random() % 2000, at).fill_from(random);
    tensors.emplace_back(241 + at, at).fill_from(random);
  }
  expect_library_digests(tensors, 2, 96, random());
}

TEST(GpuDigest, AnyNumberOfBlocksAndThreadsDoesTheSame) {
  FRESHET_GPU_SEEDED(random);
  for (const std::uint32_t threads : {32, 96, 256}) {
    for (const std::uint32_t blocks : {1, 4, 33}) {
      std::deque<Range> tensors;
      for (int i = 0; i < 9; ++i) tensors.emplace_back(random() % 9000, random() % 8).fill_from(random);
      expect_library_digests(tensors, blocks, threads, random());
    }
  }
}

TEST(GpuDigest, ManySmallTensorsAreOneLaunch) {
  FRESHET_GPU_SEEDED(random);
  std::deque<Range> tensors;
  for (int i = 0; i < 3000; ++i) tensors.emplace_back(241 + random() % 40, random() % 4).fill_from(random);
  expect_library_digests(tensors, 16, 64, random());
}

/// A whole part of 64 MiB takes fibers seconds.
TEST(GpuDigest, APartOfSomeMegabytes) {
  FRESHET_GPU_SEEDED(random);
  const std::uint64_t bytes = (std::uint64_t{5} << 20) + 1;
  std::deque<Range> tensors;
  tensors.emplace_back(bytes, 0).fill_from(random);
  expect_library_digests(tensors, 4, 256, random());
}

TEST(GpuDigest, ALongTensorIsCutInPartsOfWhichTheLastMayBeTheHosts) {
  FRESHET_GPU_SEEDED(random);
  // The parts' own digests come from the library here: what is tested is how they are cut and put together.
  for (const std::uint64_t bytes : {kDigestPartBytes, kDigestPartBytes + 1, kDigestPartBytes + 241}) {
    std::vector<std::uint8_t> tensor(bytes, 3);
    tensor[bytes - 1] = static_cast<std::uint8_t>(random());
    DigestPlan plan;
    plan.add(nullptr, 0);
    plan.add(tensor.data(), bytes);
    std::vector<std::uint64_t> of_device;
    for (const DigestPart& part : plan.device_parts()) {
      const Digest digest = plain_xxh3_of(std::as_bytes(std::span(part.bytes, part.length)));
      of_device.insert(of_device.end(), {digest.low, digest.high});
    }
    std::vector<Digest> of_host;
    for (const DigestPlan::HostPart& part : plan.host_parts()) {
      EXPECT_LE(part.length, kDigestHostBytesMax);
      of_host.push_back(plain_xxh3_of(std::as_bytes(std::span(part.bytes, part.length))));
    }
    EXPECT_EQ(plan.device_parts().size(), bytes == kDigestPartBytes + 241 ? 2 : 1);
    EXPECT_EQ(to_hex(plan.digest_of(0, of_device, of_host)), to_hex(digest_of({})));
    EXPECT_EQ(to_hex(plan.digest_of(1, of_device, of_host)), to_hex(digest_of(std::as_bytes(std::span(tensor)))));
  }
}

TEST(GpuDigest, ATableThatLiesIsReadWithinItsRanges) {
  FRESHET_GPU_SEEDED(random);
  Range bytes(300, 0);
  bytes.fill_from(random);
  const DigestPart parts[] = {{.bytes = bytes.data(), .length = 300, .first_tile = 0},
                              {.bytes = bytes.data(), .length = 0, .first_tile = 1},
                              {.bytes = bytes.data(), .length = 240, .first_tile = 1}};
  std::vector<std::uint64_t> sums(8 * kDigestSumsOfBlock);
  std::vector<std::uint64_t> digests(6);
  run_kernel(Kernel::kDigestSums, 2, 64,
             DigestSumsArguments{.parts = parts, .part_count = 3, .tiles = 8, .sums = sums.data()}, random());
  run_kernel(Kernel::kDigestChain, 1, 32,
             DigestChainArguments{.parts = parts, .part_count = 3, .sums = sums.data(), .digests = digests.data()},
             random());
  const Digest first = digest_of(bytes.bytes());
  EXPECT_EQ(digests, (std::vector<std::uint64_t>{first.low, first.high, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace freshet::gpu::test
