// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/host/fibers.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "core/gpu/kernels/words.h"
#include "tests/core/gpu/kernels/kernel_lab.h"

namespace freshet::gpu::test {
namespace {

template <typename T>
Status run_body(void (*body)(const void*), const T& arguments, std::uint32_t blocks, std::uint32_t threads,
                std::uint64_t seed) {
  return host::run_grid({.blocks = blocks, .threads = threads, .seed = seed, .body = body, .arguments = &arguments});
}

struct Order {
  std::uint32_t* seen;
  std::uint64_t* count;
};

void note_order(const void* arguments) {
  const auto& order = *static_cast<const Order*>(arguments);
  const host::Position& at = host::position();
  order.seen[atomic_add(order.count, 1)] = at.block * at.threads + at.thread;
}

TEST(GpuFibers, EachThreadRunsOnceInAnOrderThatTheSeedChooses) {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    std::vector<std::uint32_t> seen(5 * 64);
    std::vector<std::uint32_t> again(5 * 64);
    for (std::vector<std::uint32_t>* order : {&seen, &again}) {
      std::uint64_t count = 0;
      ASSERT_TRUE(run_body(note_order, Order{order->data(), &count}, 5, 64, seed));
      EXPECT_EQ(count, 5 * 64);
    }
    EXPECT_EQ(seen, again);
    orders.insert(seen);
    EXPECT_EQ(std::set<std::uint32_t>(seen.begin(), seen.end()).size(), 5 * 64);
  }
  EXPECT_EQ(orders.size(), 4);
}

struct Sums {
  std::uint64_t* of_blocks;
};

/// Adds the threads' numbers up, in shared memory, halving the number of adders each time.
void add_up(const void* arguments) {
  struct Room {
    std::uint64_t values[256];
  };
  FRESHET_SHARED(Room, room);
  room.values[thread()] = thread() + 1;
  sync_block();
  for (std::uint32_t half = threads() / 2; half > 0; half /= 2) {
    if (thread() < half) room.values[thread()] += room.values[thread() + half];
    sync_block();
  }
  if (thread() == 0) static_cast<const Sums*>(arguments)->of_blocks[block()] = room.values[0];
}

TEST(GpuFibers, ABarrierWaitsForAllThreadsOfItsBlock) {
  for (std::uint64_t seed = gpu_seed(); seed < gpu_seed() + 5; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<std::uint64_t> sums(7);
    ASSERT_TRUE(run_body(add_up, Sums{sums.data()}, 7, 128, seed));
    EXPECT_EQ(sums, std::vector<std::uint64_t>(7, 128 * 129 / 2));
  }
}

struct WarpAnswers {
  std::uint32_t* odd_lanes;
  std::uint64_t* sums_up_to_lane;
  std::uint64_t* sums;
};

void ask_warp(const void* arguments) {
  const auto& answers = *static_cast<const WarpAnswers*>(arguments);
  answers.odd_lanes[thread()] = ballot(thread() % 2 == 1);
  answers.sums_up_to_lane[thread()] = sum_up_to_lane(std::uint64_t{thread()});
  answers.sums[thread()] = sum_of_warp(std::uint64_t{1} << lane());
}

TEST(GpuFibers, LanesExchangeValuesWithTheirWarp) {
  std::vector<std::uint32_t> odd(96);
  std::vector<std::uint64_t> up_to_lane(96);
  std::vector<std::uint64_t> sums(96);
  ASSERT_TRUE(run_body(ask_warp, WarpAnswers{odd.data(), up_to_lane.data(), sums.data()}, 1, 96, gpu_seed()));
  for (std::uint32_t i = 0; i < 96; ++i) {
    EXPECT_EQ(odd[i], 0xAAAAAAAA);
    std::uint64_t expected = 0;
    for (std::uint32_t k = i / 32 * 32; k <= i; ++k) expected += k;
    EXPECT_EQ(up_to_lane[i], expected);
    EXPECT_EQ(sums[i], 0xFFFFFFFF);
  }
}

struct Flag {
  std::uint64_t* words;
};

/// Each block waits for the one that took its ticket before.
void wait_for_the_one_before(const void* arguments) {
  struct Room {
    std::uint64_t ticket;
  };
  FRESHET_SHARED(Room, room);
  std::uint64_t* const words = static_cast<const Flag*>(arguments)->words;
  if (thread() == 0) room.ticket = atomic_add(words, 1);
  sync_block();
  if (thread() == 0) {
    while (room.ticket > 0 && atomic_load(words + room.ticket) == 0) pause_warp();
    atomic_store(words + room.ticket + 1, 1);
  }
}

TEST(GpuFibers, BlocksThatWaitForEachOtherMeet) {
  for (std::uint64_t seed = gpu_seed(); seed < gpu_seed() + 5; ++seed) {
    std::vector<std::uint64_t> words(22);
    ASSERT_TRUE(run_body(wait_for_the_one_before, Flag{words.data()}, 20, 32, seed));
    EXPECT_EQ(words[0], 20);
    EXPECT_EQ(words[20], 1);
  }
}

void leave_early(const void*) {
  if (thread() == 5) return;
  sync_block();
}

TEST(GpuFibersStuck, AThreadThatLeavesBeforeABarrierIsAnError) {
  const Status status = run_body(leave_early, 0, 2, 64, gpu_seed());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code(), Code::failed_precondition);
  EXPECT_NE(status.error().message().find("63 of a block's 64 threads wait"), std::string::npos)
      << status.error().message();
}

void meet_elsewhere(const void*) {
  if (thread() == 5) {
    sync_block();
  } else {
    sync_block();
  }
}

TEST(GpuFibersStuck, ThreadsAtDifferentBarriersAreAnError) {
  const Status status = run_body(meet_elsewhere, 0, 1, 64, gpu_seed());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("wait for each other at line"), std::string::npos);
}

void wait_for_ever(const void* arguments) {
  while (atomic_load(static_cast<const Flag*>(arguments)->words) == 0) pause_warp();
}

TEST(GpuFibersStuck, AWaitWithoutEndIsAnError) {
  std::uint64_t word = 0;
  const Status status = run_body(wait_for_ever, Flag{&word}, 1, 32, gpu_seed());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("waits for ever"), std::string::npos);
}

TEST(GpuFibers, WrongLaunchesAreRefused) {
  const FillArguments fill{};
  const auto bytes = std::as_bytes(std::span(&fill, 1));
  const Launch wrong[] = {{.kernel = Kernel::kFill, .blocks = 0},       {.kernel = Kernel::kFill, .threads = 0},
                          {.kernel = Kernel::kFill, .threads = 33},     {.kernel = Kernel::kFill, .threads = 2048},
                          {.kernel = Kernel::kFill, .shared_bytes = 1}, {.kernel = static_cast<Kernel>(kKernelCount)}};
  for (const Launch& launch : wrong) {
    const Status status = run_on_host(launch, bytes);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code(), Code::invalid_argument);
  }
  EXPECT_FALSE(run_on_host({.kernel = Kernel::kFill}, bytes.first(bytes.size() - 1)));
  EXPECT_TRUE(run_on_host({.kernel = Kernel::kFill}, bytes));
}

}  // namespace
}  // namespace freshet::gpu::test
