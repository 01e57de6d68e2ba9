// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "core/arena/arena.h"

namespace freshet {
namespace {

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

TEST(SegmentPool, PrefersTheTensorsNewestShadow) {
  SegmentPool pool({.limit_bytes = 1 << 20});
  ASSERT_TRUE(pool.add_slab(1 << 20));
  const SegmentIndex old_shadow = *pool.acquire(7, 5000);
  const SegmentIndex other = *pool.acquire(3, 5000);
  const SegmentIndex new_shadow = *pool.acquire(7, 5000);
  for (const SegmentIndex segment : {old_shadow, other, new_shadow}) {
    pool.seal(segment);
    pool.release(segment);
  }
  EXPECT_EQ(*pool.acquire(7, 5000), new_shadow);
  EXPECT_EQ(*pool.acquire(7, 5000), old_shadow);
  EXPECT_EQ(*pool.acquire(7, 5000), other) << "a free segment of the size serves when there is no shadow";
}

TEST(SegmentPool, RefusesToPassItsLimit) {
  SegmentPool pool({.limit_bytes = 10000});
  EXPECT_EQ(pool.acquire(0, 1).error().code(), Code::out_of_space);
  ASSERT_TRUE(pool.add_slab(6000));
  EXPECT_EQ(pool.add_slab(4001).error().code(), Code::out_of_space);
  EXPECT_EQ(pool.add_slab(~std::uint64_t{0}).error().code(), Code::out_of_space);
  EXPECT_EQ(*pool.add_slab(4000), 1u);
  EXPECT_EQ(pool.acquire(0, ~std::uint64_t{0}).error().code(), Code::out_of_space);
  EXPECT_EQ(pool.acquire(0, ~std::uint64_t{0} - 63).error().code(), Code::out_of_space);
}

TEST(SegmentPool, MeltsFreeNeighboursForALargerTensor) {
  SegmentPool pool({.limit_bytes = 16384});
  ASSERT_TRUE(pool.add_slab(16384));
  std::vector<SegmentIndex> small;
  for (std::uint32_t tensor = 0; tensor < 4; ++tensor) small.push_back(*pool.acquire(tensor, 4096));
  pool.release(small[1]);
  EXPECT_FALSE(pool.acquire(9, 8192));
  pool.release(small[2]);
  const auto large = pool.acquire(9, 8192);
  ASSERT_TRUE(large);
  EXPECT_EQ(pool.place(*large), (SegmentPlace{0, 4096, 8192}));
  EXPECT_EQ(pool.free_bytes(), 0u);
}

/// What the pool should know, kept as a list of the segments in use.
class PoolModel {
 public:
  void take(SegmentIndex index, const SegmentPlace& place) {
    const std::uint64_t span = span_of(place.bytes);
    for (const auto& [other, held] : in_use_) {
      const bool apart = held.slab != place.slab || place.offset + span <= held.offset ||
                         held.offset + span_of(held.bytes) <= place.offset;
      ASSERT_TRUE(apart) << "segment " << index << " overlaps segment " << other << ", which is in use";
    }
    const auto [seen, fresh] = places_.emplace(index, place);
    ASSERT_TRUE(fresh || seen->second == place) << "index " << index << " means two places";
    in_use_.emplace(index, place);
  }
  void give(SegmentIndex index) { in_use_.erase(index); }

  std::uint64_t used_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [index, place] : in_use_) sum += span_of(place.bytes);
    return sum;
  }

  /// Whether some aligned range of a slab is free of all segments in use.
  bool has_room(const std::vector<std::uint64_t>& slabs, std::uint64_t bytes) const {
    for (std::uint32_t slab = 0; slab < slabs.size(); ++slab) {
      std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
      for (const auto& [index, place] : in_use_) {
        if (place.slab == slab) taken.emplace_back(place.offset, place.offset + span_of(place.bytes));
      }
      std::sort(taken.begin(), taken.end());
      taken.emplace_back(slabs[slab], slabs[slab]);
      std::uint64_t at = 0;
      for (const auto& [from, to] : taken) {
        if (round_up(at, segment_alignment(bytes)) + span_of(bytes) <= from) return true;
        at = to;
      }
    }
    return false;
  }

  static std::uint64_t span_of(std::uint64_t bytes) {
    return round_up(std::max<std::uint64_t>(bytes, 1), segment_alignment(bytes));
  }

 private:
  std::map<SegmentIndex, SegmentPlace> in_use_;
  std::map<SegmentIndex, SegmentPlace> places_;
};

TEST(SegmentPool, AgreesWithABruteForceModel) {
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{20}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    SegmentPool pool({.limit_bytes = 400000});
    PoolModel model;
    std::vector<std::uint64_t> slabs;
    std::vector<std::pair<SegmentIndex, bool>> held;  // And whether it is sealed.
    const std::vector<std::uint64_t> sizes = {0, 1, 64, 100, 4000, 4096, 5000, 9000, 20000, 60000};
    int refused = 0;
    for (int step = 0; step < 6000; ++step) {
      const std::uint64_t what = below(10);
      if (what == 0 && slabs.size() < 5) {
        const std::uint64_t bytes = 64 * (1 + below(1500));
        if (pool.add_slab(bytes)) slabs.push_back(bytes);
      } else if (what <= 5) {
        const auto tensor = static_cast<std::uint32_t>(below(8));
        const std::uint64_t bytes = sizes[below(sizes.size())];
        const bool room = model.has_room(slabs, bytes);
        const auto segment = pool.acquire(tensor, bytes);
        ASSERT_EQ(segment.has_value(), room) << "step " << step << ", " << bytes << " bytes";
        if (!segment) {
          ++refused;
          continue;
        }
        const SegmentPlace place = pool.place(*segment);
        ASSERT_EQ(place.bytes, bytes);
        ASSERT_EQ(place.offset % segment_alignment(bytes), 0u);
        ASSERT_LE(place.offset + bytes, slabs.at(place.slab));
        ASSERT_NO_FATAL_FAILURE(model.take(*segment, place)) << "step " << step;
        held.emplace_back(*segment, false);
      } else if (!held.empty()) {
        const std::size_t which = below(held.size());
        if (!held[which].second && what <= 7) {
          pool.seal(held[which].first);
          held[which].second = true;
        } else {
          pool.release(held[which].first);
          model.give(held[which].first);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      std::uint64_t total = 0;
      for (const std::uint64_t bytes : slabs) total += bytes;
      ASSERT_EQ(pool.slab_bytes(), total);
      ASSERT_EQ(pool.free_bytes(), total - model.used_bytes()) << "step " << step;
    }
    EXPECT_GT(refused, 10);
  }
}

TEST(SegmentPoolDeathTest, NeverReleasesTwice) {
  SegmentPool pool({.limit_bytes = 4096});
  ASSERT_TRUE(pool.add_slab(4096));
  const SegmentIndex segment = *pool.acquire(0, 10);
  pool.release(segment);
  EXPECT_DEATH(pool.release(segment), "broken invariant");
  EXPECT_DEATH(pool.seal(segment), "broken invariant");
}

}  // namespace
}  // namespace freshet
