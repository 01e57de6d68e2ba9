// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Runs a kernel's text without a device: each thread of a block is a fiber, and a seed chooses the order in which
/// blocks begin and fibers go on. A few blocks are resident at the same time, as on a device, so that blocks which wait
/// for each other meet. The fibers of a launch share one thread of the operating system.
///
/// The emulation is stricter than a device where a device would answer with undefined behaviour: threads of a block
/// that meet at different barriers, and a thread that leaves while others wait, are errors. Shared memory begins as
/// garbage. The address sanitizer knows the fibers' stacks. To the thread sanitizer each fiber is a thread of its own,
/// and only what orders memory on a device (a barrier, atomics of the compiler) orders it here: a barrier that is
/// missing is a reported race.
///
/// For core/gpu/kernels' own files.

#include <cstddef>
#include <cstdint>

#include "core/base/result.h"

namespace freshet::gpu::host {

/// Where the calling fiber stands.
struct Position {
  std::uint32_t thread = 0;
  std::uint32_t threads = 0;
  std::uint32_t block = 0;
  std::uint32_t blocks = 0;
};

struct Grid {
  std::uint32_t blocks = 1;
  std::uint32_t threads = 32;  ///< Of a block; a multiple of kWarpThreads.
  std::uint64_t seed = 1;
  void (*body)(const void* arguments) = nullptr;
  const void* arguments = nullptr;
};

inline constexpr std::uint32_t kWarpThreads = 32;
inline constexpr std::uint32_t kBlockThreadsMax = 1024;

/// Runs `body` once for each thread of the grid. failed_precondition: the threads of a block or of a warp did not meet,
/// or nothing moves any more; the message says where. Then no fiber goes on, and what the kernel wrote is undefined.
/// Any thread may call it; each call has fibers of its own.
Status run_grid(const Grid& grid);

// The rest is for kernels' text, through core/gpu/kernels/words.h. REQUIRES: called by a fiber. `line` is the caller's.

const Position& position();

/// Waits for all threads of the block. Returns how many of them gave true.
std::uint32_t meet_block(bool vote, int line);

/// These wait for all lanes of the warp. On a device the first two order no memory, nor here.
std::uint32_t ballot_of_warp(bool value, int line);
std::uint64_t value_of_lane(std::uint64_t value, std::uint32_t lane, int line);
void synchronize_warp(int line);

/// Lets other fibers go on, in a loop that waits for another block.
void pause(int line);

/// Before an atomic operation: sometimes lets other fibers go on.
void before_atomic();

/// The block's shared memory: `bytes` of garbage, the same for all of its threads.
void* shared_memory(std::size_t bytes);

}  // namespace freshet::gpu::host
