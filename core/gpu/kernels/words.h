// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The words in which kernels are written. nvcc compiles a kernel's text for devices; the C++ compiler compiles the
/// same text for fibers (core/gpu/kernels/host/fibers.h). For the .cu files alone: elsewhere a kernel is named by
/// core/gpu/kernels/kernels.h.
///
/// Threads of a block always come in whole warps, and all lanes of a warp take part in each of its words.

#include <cstdint>

#if defined(__CUDACC__)

#define FRESHET_DEVICE __device__ __forceinline__
/// Not const: that would give its name the path of this tree, and each tree another fatbin.
#define FRESHET_CONSTANT __device__ __constant__
/// A kernel: FRESHET_KERNEL(name, most threads of a block, blocks that a processor should hold at least, arguments'
/// type) { … arguments.… }
#define FRESHET_KERNEL(name, threads_max, resident_min, Arguments) \
  extern "C" __global__ void __launch_bounds__(threads_max, resident_min) freshet_gpu_##name(const Arguments arguments)
/// One object of `Type` for all threads of the block. Its bytes are garbage at first. Once in a kernel.
#define FRESHET_SHARED(Type, name) __shared__ Type name
#define FRESHET_UNROLL _Pragma("unroll")
#define FRESHET_LINE

namespace freshet::gpu {

/// 16 bytes that are loaded and stored at once.
using Words = uint4;

FRESHET_DEVICE std::uint32_t thread() { return threadIdx.x; }
FRESHET_DEVICE std::uint32_t threads() { return blockDim.x; }
FRESHET_DEVICE std::uint32_t block() { return blockIdx.x; }
FRESHET_DEVICE std::uint32_t blocks() { return gridDim.x; }

FRESHET_DEVICE void sync_block() { __syncthreads(); }
FRESHET_DEVICE void sync_warp() { __syncwarp(); }
/// Bit i is what lane i gave.
FRESHET_DEVICE std::uint32_t ballot(bool value) { return __ballot_sync(0xffffffffU, value); }
/// What lane `lane` gave.
template <typename T>
FRESHET_DEVICE T from_lane(T value, std::uint32_t lane) {
  return __shfl_sync(0xffffffffU, value, static_cast<int>(lane));
}

FRESHET_DEVICE std::uint64_t atomic_add(std::uint64_t* to, std::uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
/// Keeps the larger.
FRESHET_DEVICE void atomic_max(std::uint32_t* to, std::uint32_t value) { atomicMax(to, value); }
/// Another block sees the word as it was stored, whole; nothing else is ordered by it.
FRESHET_DEVICE void atomic_store(std::uint64_t* to, std::uint64_t value) {
  *static_cast<volatile std::uint64_t*>(to) = value;
}
FRESHET_DEVICE std::uint64_t atomic_load(const std::uint64_t* from) {
  return *static_cast<const volatile std::uint64_t*>(from);
}
/// In a loop that waits for another block.
FRESHET_DEVICE void pause_warp() { __nanosleep(20); }

FRESHET_DEVICE std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) { return __umul64hi(a, b); }
FRESHET_DEVICE std::uint32_t count_bits(std::uint32_t bits) { return static_cast<std::uint32_t>(__popc(bits)); }
/// Of the lowest bit that is set. REQUIRES: one is.
FRESHET_DEVICE std::uint32_t lowest_bit(std::uint32_t bits) { return static_cast<std::uint32_t>(__ffs(bits)) - 1; }

/// REQUIRES: aligned.
template <typename T>
FRESHET_DEVICE T load(const std::uint8_t* from) {
  return *reinterpret_cast<const T*>(from);
}
template <typename T>
FRESHET_DEVICE void store(std::uint8_t* to, T value) {
  *reinterpret_cast<T*>(to) = value;
}

}  // namespace freshet::gpu

#else

#include <bit>
#include <cstring>

#include "core/base/check.h"
#include "core/gpu/kernels/host/fibers.h"

#define FRESHET_DEVICE inline
#define FRESHET_CONSTANT inline constexpr
#define FRESHET_KERNEL(name, threads_max, resident_min, Arguments) \
  static_assert(threads_max <= host::kBlockThreadsMax);            \
  inline void freshet_gpu_##name(const Arguments& arguments)
#define FRESHET_SHARED(Type, name) Type& name = *static_cast<Type*>(host::shared_memory(sizeof(Type)))
#define FRESHET_UNROLL
/// A barrier is known by the line of its caller, so threads that meet at different ones are found.
#define FRESHET_LINE int line = __builtin_LINE()

namespace freshet::gpu {

struct alignas(16) Words {
  std::uint32_t x, y, z, w;
};

inline std::uint32_t thread() { return host::position().thread; }
inline std::uint32_t threads() { return host::position().threads; }
inline std::uint32_t block() { return host::position().block; }
inline std::uint32_t blocks() { return host::position().blocks; }

inline void sync_block(FRESHET_LINE) { host::meet_block(false, line); }
inline void sync_warp(FRESHET_LINE) { host::synchronize_warp(line); }
inline std::uint32_t ballot(bool value, FRESHET_LINE) { return host::ballot_of_warp(value, line); }
template <typename T>
inline T from_lane(T value, std::uint32_t lane, FRESHET_LINE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  return static_cast<T>(host::value_of_lane(value, lane % host::kWarpThreads, line));
}

inline std::uint64_t atomic_add(std::uint64_t* to, std::uint64_t value) {
  host::before_atomic();
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline void atomic_max(std::uint32_t* to, std::uint32_t value) {
  host::before_atomic();
  std::uint32_t seen = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (seen < value && !__atomic_compare_exchange_n(to, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}
inline void atomic_store(std::uint64_t* to, std::uint64_t value) {
  host::before_atomic();
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
inline std::uint64_t atomic_load(const std::uint64_t* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline void pause_warp(FRESHET_LINE) { host::pause(line); }

inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline std::uint32_t count_bits(std::uint32_t bits) { return static_cast<std::uint32_t>(std::popcount(bits)); }
inline std::uint32_t lowest_bit(std::uint32_t bits) { return static_cast<std::uint32_t>(std::countr_zero(bits)); }

/// A device traps where these abort.
template <typename T>
inline T load(const std::uint8_t* from) {
  FRESHET_CHECK(reinterpret_cast<std::uintptr_t>(from) % sizeof(T) == 0);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <typename T>
inline void store(std::uint8_t* to, T value) {
  FRESHET_CHECK(reinterpret_cast<std::uintptr_t>(to) % sizeof(T) == 0);
  std::memcpy(to, &value, sizeof(T));
}

}  // namespace freshet::gpu

#endif

namespace freshet::gpu {

FRESHET_DEVICE std::uint32_t lane() { return thread() % 32; }
FRESHET_DEVICE std::uint32_t warp() { return thread() / 32; }
FRESHET_DEVICE std::uint32_t warps() { return threads() / 32; }

/// The sum over lanes 0 to this one.
template <typename T>
FRESHET_DEVICE T sum_up_to_lane(T value) {
  FRESHET_UNROLL
  for (std::uint32_t step = 1; step < 32; step *= 2) {
    const T below = from_lane(value, (lane() - step) % 32);
    if (lane() >= step) value += below;
  }
  return value;
}

/// The sum over all lanes.
template <typename T>
FRESHET_DEVICE T sum_of_warp(T value) {
  FRESHET_UNROLL
  for (std::uint32_t step = 16; step > 0; step /= 2) value += from_lane(value, lane() ^ step);
  return value;
}

/// `bytes` (up to 8) as a little-endian number, from any address.
FRESHET_DEVICE std::uint64_t load_bytes(const std::uint8_t* from, std::uint32_t bytes) {
  std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < bytes; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

FRESHET_DEVICE bool is_aligned(const void* pointer, std::uint32_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

/// The last row whose tiles begin at or before `tile`. Rows follow each other, each with the number of its first tile;
/// so of rows with the same one all but the last are empty. REQUIRES: rows[0] begins at 0; there is a row.
template <typename Row>
FRESHET_DEVICE std::uint64_t row_of(const Row* rows, std::uint64_t count, std::uint64_t tile) {
  std::uint64_t low = 0;
  std::uint64_t high = count;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (rows[middle].first_tile <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The tiles of one block: neighbours, so that the next one's row is mostly this one's.
struct TileRange {
  std::uint64_t begin, end;
};
FRESHET_DEVICE TileRange tiles_of_block(std::uint64_t tiles) {
  const std::uint64_t each = tiles / blocks();
  const std::uint64_t rest = tiles % blocks();
  const std::uint64_t begin = block() * each + (block() < rest ? block() : rest);
  return {begin, begin + each + (block() < rest ? 1 : 0)};
}

}  // namespace freshet::gpu
