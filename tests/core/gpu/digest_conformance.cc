// SPDX-License-Identifier: Apache-2.0
// Digests that a device forms, compared with those of the xxHash library, which core/base/digest.h calls.

#include <algorithm>
#include <iostream>
#include <random>

#include "core/base/digest.h"
#include "core/gpu/digester.h"
#include "tests/core/gpu/gpu_conformance.h"
#include "tests/support/this_build.h"

namespace freshet::gpu {
namespace {

/// Ranges of one slab, at any address.
struct DigestedSlab {
  DigestedSlab(Device& device, const std::vector<std::uint64_t>& sizes, std::mt19937_64& random) {
    std::uint64_t bytes = 0;
    for (const std::uint64_t size : sizes) {
      bytes += random() % 9;
      offsets.push_back(bytes);
      bytes += size;
    }
    image = test::seeded_bytes(bytes + 1, random());
    memory = must(device.allocate(image.size()));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ranges.push_back({sizes[i] == 0 ? nullptr : memory.address() + offsets[i], sizes[i]});
      expected.push_back(to_hex(digest_of({image.data() + offsets[i], sizes[i]})));
    }
  }
  std::vector<std::byte> image;
  std::vector<std::uint64_t> offsets;
  Memory memory;
  std::vector<Bytes> ranges;
  std::vector<std::string> expected;
};

class GpuDigests : public GpuConformance {
 protected:
  void SetUp() override {
    GpuConformance::SetUp();
    if (lacks_kernels()) GTEST_SKIP() << why_no_fatbin();
    std::cout << "FRESHET_GPU_SEED=" << seed_ << "\n";
  }

  /// The bytes are written on the same stream, before.
  void expect_digests(Digester& digester, const std::vector<std::uint64_t>& sizes, std::mt19937_64& random) {
    DigestedSlab slab(*device_, sizes, random);
    const Stream stream = must(device_->create_stream());
    Digester::Job job;
    must(device_->copy(stream.handle(), slab.memory.address(), slab.image.data(), slab.image.size()));
    must(digester.queue(stream.handle(), slab.ranges, job));
    finish(stream.handle());
    ASSERT_TRUE(job.is_whole());
    const std::vector<Digest> digests = job.digests();
    digester.give_back(std::move(job));
    ASSERT_EQ(digests.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_EQ(to_hex(digests[i]), slab.expected[i]) << sizes[i] << " bytes at " << slab.offsets[i];
    }
  }
};

TEST_P(GpuDigests, EqualTheLibrarysForSizesAroundEveryBoundary) {
  in_many_orders(
      [&] {
        std::mt19937_64 random(seed_ + infos_.size());
        std::vector<std::uint64_t> sizes;
        for (const std::uint64_t edge : {0, 16, 128, 240, 256, 1024, 2048, 8 * 1024, 16 * 1024}) {
          for (const std::int64_t apart : {-8, -1, 0, 1, 8}) {
            if (apart < 0 && edge == 0) continue;
            sizes.push_back(edge + static_cast<std::uint64_t>(apart));
          }
        }
        for (const std::uint64_t element : {1, 2, 4, 8}) sizes.push_back(element * (1 + random() % 3000));
        std::ranges::shuffle(sizes, random);
        Digester digester(device_);
        expect_digests(digester, sizes, random);
      },
      4);
}

TEST_P(GpuDigests, OneJobFollowsAnotherInTheSameMemory) {
  in_many_orders(
      [&] {
        std::mt19937_64 random(seed_);
        Digester digester(device_);
        const Stream stream = must(device_->create_stream());
        const std::vector<std::vector<std::uint64_t>> sizes = {{5000, 3}, {9001}, {100, 0, 241}, {40'000, 239}};
        std::vector<DigestedSlab> slabs;
        std::vector<Digester::Job> jobs(sizes.size());
        for (const auto& of_one : sizes) slabs.emplace_back(*device_, of_one, random);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          must(device_->copy(stream.handle(), slabs[i].memory.address(), slabs[i].image.data(), slabs[i].image.size()));
          must(digester.queue(stream.handle(), slabs[i].ranges, jobs[i]));
        }
        finish(stream.handle());
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          std::vector<std::string> digests;
          for (const Digest& digest : jobs[i].digests()) digests.push_back(to_hex(digest));
          EXPECT_EQ(digests, slabs[i].expected) << "job " << i;
        }
      },
      8);
}

TEST_P(GpuDigests, LittleRoomForSumsMakesGroups) {
  std::mt19937_64 random(seed_);
  std::vector<std::uint64_t> sizes(60);
  for (std::uint64_t& size : sizes) size = random() % 6000;
  sizes[7] = 20'000;
  for (const std::uint64_t sums_bytes_max : {0, 64, 20 * 64, 40 * 64}) {
    SCOPED_TRACE(sums_bytes_max);
    Digester digester(device_, sums_bytes_max);
    expect_digests(digester, sizes, random);
  }
}

TEST_P(GpuDigests, AHundredThousandTensorsAreThreeLaunches) {
  std::mt19937_64 random(seed_);
  std::vector<std::uint64_t> sizes(test::under_sanitizer() ? 2'000 : 100'000, 100);
  for (std::size_t i = 0; i < sizes.size(); i += 20) sizes[i] = 241 + i % 7;
  auto* const host = dynamic_cast<HostPlatform*>(platform_.get());
  const std::uint64_t turns = host != nullptr ? host->turns() : 0;
  Digester digester(device_);
  expect_digests(digester, sizes, random);
  if (host != nullptr) {
    EXPECT_LT(host->turns() - turns, 12U) << "of copies, launches and events";
  }
}

TEST_P(GpuDigests, ALongTensorHasPartsOfWhichTheLastIsShort) {
  if (test::under_sanitizer()) GTEST_SKIP() << "64 MiB take the fibers of a sanitizer's build a minute";
  std::mt19937_64 random(seed_);
  Digester digester(device_);
  expect_digests(digester, {kDigestPartBytes + 1, 5}, random);
  if (!GetParam().is_host) expect_digests(digester, {kDigestPartBytes, 2 * kDigestPartBytes + 241}, random);
}

TEST_P(GpuDigests, WithoutRoomNothingIsLost) {
  if (!GetParam().is_host) GTEST_SKIP() << "a real device has too much memory to fill";
  std::mt19937_64 random(seed_);
  Digester digester(device_);
  expect_digests(digester, {300}, random);
  const std::uint64_t all = must(device_->room()).free;
  std::vector<std::uint64_t> sizes(4, 300'000);
  DigestedSlab slab(*device_, sizes, random);
  const Memory rest = must(device_->allocate(must(device_->room()).free));
  const Stream stream = must(device_->create_stream());
  Digester::Job job;
  EXPECT_EQ(code_of(digester.queue(stream.handle(), slab.ranges, job)), "out_of_space");
  EXPECT_FALSE(job.is_whole());
  EXPECT_EQ(must(device_->room()).free, 0U) << "of " << all;
}

TEST_P(GpuDigests, ADeviceWithoutKernelsSaysSo) {
  if (!GetParam().is_host) GTEST_SKIP() << "only the host device can be told to have none";
  HostPlatform old(HostOptions{.seed = seed_, .compute_major = 7});
  const auto device = must(old.open(host_device_uuid(0)));
  const Memory memory = must(device->allocate(4096));
  const Stream stream = must(device->create_stream());
  Digester digester(device);
  Digester::Job job;
  const std::vector<Bytes> ranges = {{memory.address(), 4096}};
  EXPECT_EQ(code_of(digester.queue(stream.handle(), ranges, job)), "unsupported");
  EXPECT_FALSE(job.is_whole());
  must(device->drain(kPatience));
}

/// One case where a driver and a device are, none elsewhere: GpuDriver tells the reason.
std::vector<EngineCase> digest_driver_cases() {
  if (!open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, GpuDigests, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuDigests, testing::ValuesIn(digest_driver_cases()));

}  // namespace
}  // namespace freshet::gpu
