// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Runs kernels as fibers, over ranges of memory whose surroundings are watched.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "core/gpu/kernels/kernels.h"
#include "tests/support/from_environment.h"

namespace freshet::gpu::test {

/// What a run's random numbers begin with: FRESHET_GPU_SEED, or 1. A failure prints it.
inline std::uint64_t gpu_seed() { return from_environment("FRESHET_GPU_SEED", 1); }

#define FRESHET_GPU_SEEDED(random)    \
  std::mt19937_64 random(gpu_seed()); \
  SCOPED_TRACE(testing::Message() << "FRESHET_GPU_SEED=" << gpu_seed())

/// The thread sanitizer makes a hundred of one: it sees a missing barrier in a few blocks as well as in many.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSlow = true;
#else
inline constexpr bool kIsSlow = false;
#endif

template <typename Arguments>
Status try_kernel(Kernel kernel, std::uint32_t blocks, std::uint32_t threads, const Arguments& arguments,
                  std::uint64_t seed) {
  return run_on_host({.kernel = kernel, .blocks = blocks, .threads = threads}, std::as_bytes(std::span(&arguments, 1)),
                     seed);
}

template <typename Arguments>
void run_kernel(Kernel kernel, std::uint32_t blocks, std::uint32_t threads, const Arguments& arguments,
                std::uint64_t seed) {
  const Status status = try_kernel(kernel, blocks, threads, arguments, seed);
  ASSERT_TRUE(status) << status.error().message();
}

/// Bytes at an address that is `misaligned` modulo 64. What lies before and behind them is watched.
class Range {
 public:
  Range(std::uint64_t bytes, std::uint32_t misaligned) : bytes_(bytes) {
    memory_.assign(bytes + 3 * kAround, kWatched);
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    begin_ = kAround + (kAround - address % kAround) % kAround + misaligned % kAround;
  }
  std::uint8_t* data() { return memory_.data() + begin_; }
  const std::uint8_t* data() const { return memory_.data() + begin_; }
  std::uint64_t size() const { return bytes_; }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(data(), bytes_)); }
  std::span<std::byte> writable() { return std::as_writable_bytes(std::span(data(), bytes_)); }
  std::vector<std::uint8_t> copy() const { return {data(), data() + bytes_}; }

  void fill_from(std::mt19937_64& random) {
    for (std::uint64_t i = 0; i < bytes_; ++i) data()[i] = static_cast<std::uint8_t>(random());
  }
  bool is_surrounded() const {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[i] != kWatched) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t kAround = 64;
  static constexpr std::uint8_t kWatched = 0xA5;
  std::vector<std::uint8_t> memory_;
  std::uint64_t bytes_;
  std::size_t begin_ = 0;
};

}  // namespace freshet::gpu::test
