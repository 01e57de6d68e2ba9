// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "core/base/bytes.h"
#include "core/gpu/kernels/kernels.h"

namespace freshet::gpu {
namespace {

/// A fatbin is a head of 16 bytes (magic, version, its own size, the size of the rest) and entries: kind (1 PTX, 2
/// code), the size of the entry's head, the size behind it, and at byte 28 the device's number.
std::set<std::string> targets_of(std::span<const std::byte> bytes) {
  std::set<std::string> targets;
  std::size_t at = load_little_endian<std::uint16_t>(bytes.data() + 6);
  while (at + 32 <= bytes.size()) {
    const auto kind = load_little_endian<std::uint16_t>(bytes.data() + at);
    const auto head = load_little_endian<std::uint32_t>(bytes.data() + at + 4);
    const auto size = load_little_endian<std::uint64_t>(bytes.data() + at + 8);
    const auto device = load_little_endian<std::uint32_t>(bytes.data() + at + 28);
    targets.insert((kind == 1 ? "compute_" : "sm_") + std::to_string(device));
    at += head + size;
  }
  EXPECT_EQ(at, bytes.size());
  return targets;
}

TEST(GpuFatbin, HoldsCodeForEachDeviceAndPtxForOthers) {
  if (fatbin().empty()) GTEST_SKIP() << why_no_fatbin();
  EXPECT_TRUE(why_no_fatbin().empty());
  ASSERT_GT(fatbin().size(), 1000U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(fatbin().data()) % 64, 0U);
  EXPECT_EQ(load_little_endian<std::uint32_t>(fatbin().data()), 0xBA55ED50U);
  EXPECT_EQ(targets_of(fatbin()), (std::set<std::string>{"sm_80", "sm_90", "sm_100", "sm_120", "compute_80"}));
}

TEST(GpuFatbin, WithoutItTheReasonIsSaid) { EXPECT_EQ(fatbin().empty(), !why_no_fatbin().empty()); }

TEST(GpuFatbin, EachKernelHasAName) {
  std::set<std::string_view> names;
  for (std::uint32_t i = 0; i < kKernelCount; ++i) {
    const auto kernel = static_cast<Kernel>(i);
    names.insert(symbol_of(kernel));
    EXPECT_EQ(symbol_of(kernel).substr(0, 12), "freshet_gpu_");
    EXPECT_GE(threads_max_of(kernel), 256U);
    EXPECT_GT(argument_bytes_of(kernel), 0U);
  }
  EXPECT_EQ(names.size(), kKernelCount);
}

}  // namespace
}  // namespace freshet::gpu
