// SPDX-License-Identifier: Apache-2.0
/// Erasure codes over groups: the arithmetic, the stripes, and shards that come back from others' parity.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <iostream>
#include <numeric>
#include <set>

#include "core/base/format.h"
#include "repo/levels/parity/erasure.h"
#include "repo/levels/terms/ring.h"
#include "repo/levels/terms/stripes.h"
#include "tests/repo/levels/support/parity_world.h"
#include "tests/support/from_environment.h"

namespace freshet::levels {
namespace {

/// GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1, by shifts and subtractions.
std::uint8_t times(std::uint8_t a, std::uint8_t b) {
  unsigned product = 0;
  for (unsigned bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1U) != 0) product ^= static_cast<unsigned>(a) << bit;
  }
  for (unsigned bit = 15; bit > 7; --bit) {
    if ((product >> bit & 1U) != 0) product ^= 0x11DU << (bit - 8);
  }
  return static_cast<std::uint8_t>(product);
}

std::uint8_t inverse_of(std::uint8_t a) {
  for (unsigned b = 1; b < 256; ++b) {
    if (times(a, static_cast<std::uint8_t>(b)) == 1) return static_cast<std::uint8_t>(b);
  }
  return 0;
}

/// Parity is what the definition says (FORMAT.md), and any blocks that are lost come back.
TEST(Erasure, AnyLossesComeBack) {
  const std::uint64_t seed = from_environment("FRESHET_SEED", 5);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  Random random(seed);
  for (std::uint32_t all = 2; all <= kGroupRanksMax; ++all) {
    for (std::uint32_t losses = 1; losses < all; ++losses) {
      const std::uint32_t data = all - losses;
      const Erasure erasure(data, losses);
      const std::size_t bytes = 64 * (1 + random() % 9);
      std::vector<std::vector<std::byte>> blocks;
      for (std::uint32_t i = 0; i < data; ++i) blocks.push_back(random_bytes(random, bytes));
      for (std::uint32_t row = 0; row < losses; ++row) {
        std::vector<std::byte> parity(bytes);
        erasure.encode(row, std::vector<Bytes>(blocks.begin(), blocks.begin() + data), parity);
        for (std::size_t at = 0; at < bytes; ++at) {
          std::uint8_t sum = 0;
          for (std::uint32_t i = 0; i < data; ++i) {
            const std::uint8_t factor = losses == 1 ? 1 : inverse_of(static_cast<std::uint8_t>((data + row) ^ i));
            sum ^= times(factor, static_cast<std::uint8_t>(blocks[i][at]));
          }
          ASSERT_EQ(parity[at], static_cast<std::byte>(sum)) << data << "+" << losses << ", row " << row;
        }
        blocks.push_back(std::move(parity));
      }
      for (std::uint32_t lost = 0; lost < 1U << all; ++lost) {
        if (std::popcount(lost) > static_cast<int>(losses)) continue;
        std::vector<std::uint32_t> have;
        std::vector<Bytes> views;
        for (std::uint32_t i = 0; i < all && have.size() < data; ++i) {
          if ((lost >> i & 1U) != 0) continue;
          have.push_back(i);
          views.emplace_back(blocks[i]);
        }
        for (std::uint32_t i = 0; i < data; ++i) {
          if ((lost >> i & 1U) == 0) continue;
          std::vector<std::byte> back(bytes);
          erasure.rebuild(have, views, i, back);
          ASSERT_EQ(back, blocks[i]) << data << "+" << losses << " without " << lost;
        }
      }
    }
  }
}

TEST(Stripes, EachRankHasAsMuchAsAnyOtherAndEachStripeOneBlockOfEach) {
  for (std::uint32_t ranks = 2; ranks <= kGroupRanksMax; ++ranks) {
    for (std::uint32_t losses = 1; losses < ranks; ++losses) {
      const Stripes stripes{.ranks = ranks, .losses = losses};
      std::vector<std::uint32_t> parity(ranks);
      for (std::uint32_t stripe = 0; stripe < ranks; ++stripe) {
        std::set<std::uint32_t> positions;
        for (std::uint32_t row = 0; row < losses; ++row) {
          const std::uint32_t position = stripes.parity_at(stripe, row);
          positions.insert(position);
          ++parity[position];
          EXPECT_EQ(stripes.stripe_of_row(position, row), stripe);
        }
        for (std::uint32_t block = 0; block < stripes.data(); ++block) {
          const std::uint32_t position = stripes.data_at(stripe, block);
          positions.insert(position);
          EXPECT_EQ(stripes.stripe_of_block(position, block), stripe);
        }
        EXPECT_EQ(positions.size(), ranks);
      }
      EXPECT_EQ(std::set<std::uint32_t>(parity.begin(), parity.end()), std::set<std::uint32_t>{losses});
    }
  }
}

/// Whichever ranks of a group are lost, as many as it says, each version comes back byte by byte; of one more, none is
/// made up.
TEST(Parity, LostSharesComeBack) {
  const std::uint64_t seed = from_environment("FRESHET_SEED", 11);
  const std::uint64_t rounds = from_environment("FRESHET_RUNS", 8);
  std::cout << "FRESHET_SEED=" << seed << "\n";
  for (std::uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(format("round {}", round));
    Random random(seed + round);
    const auto ranks = static_cast<std::uint32_t>(2 + random() % (kGroupRanksMax - 1));
    const auto losses = static_cast<std::uint32_t>(1 + random() % std::min(ranks - 1, 3U));
    ParityWorld world(ranks, losses, random(), any_tensors(random));
    for (std::uint64_t number = 1; number <= 3; ++number) world.write(number, 0.3);
    std::vector<std::uint32_t> order(ranks);
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::shuffle(order, random);
    for (std::uint32_t i = 0; i < losses; ++i) world.lose(order[i]);
    for (std::uint64_t number = 1; number <= 3; ++number) {
      const auto plan = world.planner(number).next();
      ASSERT_TRUE(plan) << plan.error().message();
      ASSERT_EQ(plan->source, RestartPlan::Source::rebuild);
      ASSERT_EQ(plan->rebuilds.size(), losses);
      const auto sent = decode_plan(encode(*plan));
      ASSERT_TRUE(sent);
      EXPECT_EQ(sent->rebuilds, plan->rebuilds);
      EXPECT_EQ(sent->holders, plan->holders);
      for (const RebuildTask& task : plan->rebuilds) {
        std::vector<BadShard> bad;
        EXPECT_EQ(world.rebuild(*sent, task.shard_rank, bad), "");
        EXPECT_TRUE(bad.empty());
      }
    }
    world.lose(order[losses]);
    for (std::uint64_t number = 1; number <= 3; ++number) EXPECT_FALSE(world.planner(number).next());
  }
}

/// What did not change costs no parity again.
TEST(Parity, UnchangedBlocksAreInherited) {
  ParityWorld world(4, 2, 7, equal_tensors(5, 1'300'001));
  world.write(1, 1);
  world.write(2, 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_LT(world.bytes_of_parity(rank, 2), 20'000U);
    EXPECT_GT(world.bytes_of_parity(rank, 1), world.share_bytes(rank) * 9 / 10);
  }
  world.lose(0);
  world.lose(3);
  const auto plan = world.planner(2).next();
  ASSERT_TRUE(plan);
  for (const RebuildTask& task : plan->rebuilds) {
    std::vector<BadShard> bad;
    EXPECT_EQ(world.rebuild(*plan, task.shard_rank, bad), "");
  }
}

/// Pieces that lie in turn in two files are asked for together.
TEST(Parity, ManySmallPiecesAreFewQuestions) {
  ParityWorld world(3, 1, 17, equal_tensors(6000, 64));
  world.write(1, 1);
  const std::uint64_t before = world.reads();
  world.write(2, 0.5);
  EXPECT_LT(world.reads() - before, 40U);
  world.lose(1);
  const auto plan = world.planner(2).next();
  ASSERT_TRUE(plan);
  std::vector<BadShard> bad;
  const std::uint64_t rebuilding = world.reads();
  EXPECT_EQ(world.rebuild(*plan, 1, bad), "");
  EXPECT_LT(world.reads() - rebuilding, 20'000U);
}

/// The list of tensors is with every rank.
TEST(Parity, ALostListOfTensorsComesFromAnother) {
  ParityWorld world(4, 2, 19, equal_tensors(4, 800'000));
  world.write(1, 1);
  world.lose(2);
  for (const std::uint32_t rank : {0U, 1U, 3U}) {
    world.lose_table_of(rank);
    const auto plan = world.planner(1).next();
    ASSERT_TRUE(plan);
    std::vector<BadShard> bad;
    EXPECT_EQ(world.rebuild(*plan, 2, bad), "");
    EXPECT_TRUE(bad.empty());
  }
}

/// A rank that cannot keep what it rebuilt is not asked again; another is, until nobody is left.
TEST(Parity, AnotherRankRebuildsWhatOneCannotKeep) {
  ParityWorld world(3, 1, 23, equal_tensors(4, 800'000));
  world.write(1, 1);
  world.lose(1);
  RestartPlanner planner = world.planner(1);
  std::set<std::uint32_t> asked;
  for (int i = 0; i < 3; ++i) {
    const auto plan = planner.next();
    ASSERT_TRUE(plan) << plan.error().message();
    ASSERT_EQ(plan->source, RestartPlan::Source::rebuild);
    ASSERT_EQ(plan->rebuilds.size(), 1U);
    const RebuildTask task = plan->rebuilds.front();
    EXPECT_EQ(task.shard_rank, 1U);
    EXPECT_TRUE(asked.insert(task.by).second);
    planner.cross_off(plan->version, {{{plan->version, 1, task.by, false, ShardKind::copy}, "its disk is full"}},
                      plan->source);
  }
  EXPECT_FALSE(planner.next());
}

/// A rank that does not answer may have whole shards: none is called damaged, whichever question it is.
TEST(Parity, ARankThatDoesNotAnswerIsNotDamaged) {
  ParityWorld world(4, 1, 29, equal_tensors(3, 300'000));
  world.write(1, 1);
  world.lose(2);
  const auto plan = world.planner(1).next();
  ASSERT_TRUE(plan);
  std::vector<BadShard> bad;
  world.break_question(0);
  ASSERT_EQ(world.rebuild(*plan, 2, bad), "");
  const std::uint64_t questions = world.asked();
  for (std::uint64_t nth = 1; nth <= questions; ++nth) {
    world.break_question(nth);
    bad.clear();
    EXPECT_EQ(world.rebuild(*plan, 2, bad), "the connection ended") << nth << " of " << questions;
    EXPECT_TRUE(bad.empty()) << bad.front().why;
  }
}

/// With one lost and one damaged of a group that survives two, the damage is named, and the others do.
TEST(Parity, DamageIsNamedAndPassedOver) {
  for (const std::string suffix : {".shard", ".parity"}) {
    SCOPED_TRACE(suffix);
    ParityWorld world(5, 2, 13, equal_tensors(4, 1'700'000));
    world.write(1, 1);
    const std::string path = world.file_of(2, 1, suffix);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto bytes = static_cast<std::uint64_t>(file.tellg());
    for (std::uint64_t at = bytes / 2; at + 500 < bytes; at += 4096) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put('!');
    }
    file.close();
    world.lose(4);
    RestartPlanner planner = world.planner(1);
    bool named = false;
    for (int round = 0; round < 4; ++round) {
      const auto plan = planner.next();
      ASSERT_TRUE(plan) << plan.error().message();
      ASSERT_EQ(plan->source, RestartPlan::Source::rebuild);
      std::vector<BadShard> bad;
      std::string why;
      for (const RebuildTask& task : plan->rebuilds) {
        why = world.rebuild(*plan, task.shard_rank, bad);
        if (!why.empty()) break;
      }
      if (why.empty()) break;
      ASSERT_FALSE(bad.empty()) << why;
      for (const BadShard& one : bad) {
        EXPECT_EQ(one.where.holder, 2U) << one.why;
        named = true;
      }
      planner.cross_off(plan->version, bad, plan->source);
      ASSERT_LT(round, 3);
    }
    EXPECT_TRUE(named || suffix == ".parity") << "parity of a rank need not be asked for";
  }
}

}  // namespace
}  // namespace freshet::levels
