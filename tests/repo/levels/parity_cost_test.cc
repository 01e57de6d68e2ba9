// SPDX-License-Identifier: Apache-2.0
/// What parity of a version costs of which a part changed.

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <functional>
#include <iostream>
#include <vector>

#include "core/base/format.h"
#include "tests/repo/levels/support/parity_world.h"
#include "tests/support/this_build.h"

namespace freshet::levels {
namespace {

constexpr std::uint32_t kRanks = 4;

struct QuarterCase {
  const char* name;
  std::vector<LaidTensor> tensors;
  /// Which of so many tensors change: a quarter of the bytes.
  std::function<bool(std::size_t tensor, std::size_t count)> changes;
};

std::vector<QuarterCase> quarter_cases() {
  const auto first = [](std::size_t tensor, std::size_t count) { return tensor < count / 4; };
  const auto last = [](std::size_t tensor, std::size_t count) { return tensor >= count - count / 4; };
  const auto each_fourth = [](std::size_t tensor, std::size_t) { return tensor % 4 == 2; };
  std::vector<LaidTensor> mixed = equal_tensors(8, 1'600'000);
  for (std::size_t i = 0; i < 400; ++i) {  // Between large ones, as biases.
    mixed.insert(mixed.begin() + static_cast<std::ptrdiff_t>(i * 51 / 50),
                 {.spec = {.name = format("b{}", i), .dtype = DType::u8, .shape = {4096}}, .layout = {}});
  }
  return {{"the first of large", equal_tensors(8, 1'600'000), first},
          {"the last of large of odd sizes", equal_tensors(8, 1'600'003), last},
          {"each fourth of large", equal_tensors(8, 1'600'000), each_fourth},
          {"the first of split", equal_tensors(8, 1'600'000, {.cut = Cut::split}), first},
          {"the first of small", equal_tensors(2000, 16'000), first},
          {"the last of small of odd sizes", equal_tensors(2200, 14'001), last},
          {"the first of mixed", mixed, first}};
}

/// Each host, or each two of them, with what the version has and what it inherits.
void expect_all_come_back(ParityWorld& world, std::uint32_t losses) {
  for (std::uint32_t lost = 1; lost < 1U << kRanks; ++lost) {
    if (std::popcount(lost) != static_cast<int>(losses)) continue;
    SCOPED_TRACE(format("without {:b}", lost));
    const auto plan = world.planner(2, lost).next();
    ASSERT_TRUE(plan) << plan.error().message();
    ASSERT_EQ(plan->rebuilds.size(), losses);
    for (const RebuildTask& task : plan->rebuilds) {
      std::vector<BadShard> bad;
      EXPECT_EQ(world.rebuild(*plan, task.shard_rank, bad), "");
    }
  }
}

/// A version of which a quarter changed costs a quarter of a whole one, in shards, in parity and in what ranks read
/// from each other for parity; wherever the quarter is. Whichever ranks are lost, it comes back.
TEST(ParityCost, AQuarterChangedCostsAQuarter) {
  for (const QuarterCase& one : quarter_cases()) {
    // With a sanitizer the harder one alone.
    for (std::uint32_t losses = test::under_sanitizer() ? 2 : 1; losses <= 2; ++losses) {
      SCOPED_TRACE(format("{}, {} losses", one.name, losses));
      ParityWorld world(kRanks, losses, 29, one.tensors);
      const std::size_t count = one.tensors.size();
      std::uint64_t all = 0;
      std::uint64_t changed = 0;
      for (std::size_t i = 0; i < count; ++i) {
        all += one.tensors[i].spec.bytes();
        if (one.changes(i, count)) changed += one.tensors[i].spec.bytes();
      }
      const double quarter = static_cast<double>(changed) / static_cast<double>(all);
      world.write(1, 1);
      const std::uint64_t whole_read = world.read_bytes();
      world.write_where(2, [&](std::uint32_t tensor) { return one.changes(tensor, count); });
      const std::uint64_t quarter_read = world.read_bytes() - whole_read;
      std::uint64_t whole_parity = 0;
      std::uint64_t quarter_parity = 0;
      std::uint64_t quarter_shards = 0;
      std::uint64_t whole_shards = 0;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        whole_parity += world.bytes_of_parity(rank, 1);
        quarter_parity += world.bytes_of_parity(rank, 2);
        whole_shards += std::filesystem::file_size(world.file_of(rank, 1, ".shard"));
        quarter_shards += std::filesystem::file_size(world.file_of(rank, 2, ".shard"));
      }
      const auto share = [](std::uint64_t part, std::uint64_t whole) {
        return static_cast<double>(part) / static_cast<double>(whole);
      };
      std::cout << format(
          "{}, {} losses: {:.2f} % changed; parity {} of {} bytes ({:.2f} %), read {:.2f} %, shards "
          "{:.2f} %; whole parity {:.3f} of the state, read {:.3f} shares\n",
          one.name, losses, 100 * quarter, quarter_parity, whole_parity, 100 * share(quarter_parity, whole_parity),
          100 * share(quarter_read, whole_read), 100 * share(quarter_shards, whole_shards), share(whole_parity, all),
          share(whole_read, all));
      // Where small ones begin or end to change, a region is written of which a part changed.
      const bool has_small = count > 100;
      const std::uint64_t region = kSmallPartBytes * (kRanks - losses) * kRanks;
      const double limit = quarter + 0.01 + (has_small ? share(region, all) : 0);
      EXPECT_LE(share(quarter_parity, whole_parity), limit);
      EXPECT_LE(share(quarter_shards, whole_shards), limit);
      EXPECT_LE(share(quarter_read, whole_read), limit);
      EXPECT_LE(share(whole_parity, all), 1.02 * losses / (kRanks - losses));
      // A chunk more at the end of each block; a block of a large tensor is the share of one rank's piece.
      const std::uint64_t block = 1'600'000 / kRanks / (kRanks - losses);
      EXPECT_LE(share(whole_read, all), losses * (1 + share(kChunkBytes, block)));
      expect_all_come_back(world, losses);
    }
  }
}

}  // namespace
}  // namespace freshet::levels
