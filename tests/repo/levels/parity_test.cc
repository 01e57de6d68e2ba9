// SPDX-License-Identifier: Apache-2.0
/// Erasure codes over groups: the arithmetic, the stripes, and shards that come back from others' parity.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "core/base/env.h"
#include "core/base/format.h"
#include "repo/levels/parity/erasure.h"
#include "repo/levels/parity/parity_maker.h"
#include "repo/levels/parity/shard_rebuild.h"
#include "repo/levels/parity/stripes.h"
#include "repo/levels/ring.h"
#include "repo/levels/shards/share.h"
#include "tests/support/from_environment.h"
#include "tests/support/temporary_folder.h"

namespace freshet::levels {
namespace {

using Random = std::mt19937_64;

std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

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

/// A job's ranks, each with a folder, without the job: versions are written, hosts are lost, shards are rebuilt.
class ParityWorld {
 public:
  /// `small`: so many tensors of 64 bytes; 0: a few of any size.
  ParityWorld(std::uint32_t ranks, std::uint32_t losses, std::uint64_t seed, std::size_t small = 0)
      : random_(seed), ranks_(ranks) {
    std::vector<LaidTensor> tensors;
    for (std::size_t i = 0; i < small; ++i) {
      tensors.push_back({.spec = {.name = format("s{}", i), .dtype = DType::u8, .shape = {64}}, .layout = {}});
    }
    const std::size_t count = small > 0 ? 0 : 1 + random_() % 6;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bytes = random_() % 3 == 0 ? random_() % 100 : random_() % 4'000'000;
      tensors.push_back({.spec = {.name = format("t{}", i), .dtype = DType::u8, .shape = {bytes}},
                         .layout = {.cut = random_() % 3 == 0 ? Cut::split : Cut::replicated}});
    }
    table_ = TensorTable::of(tensors);
    std::vector<std::uint32_t> members(ranks);
    std::iota(members.begin(), members.end(), 0U);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      folders_.push_back(std::make_unique<TemporaryFolder>());
      open_.push_back(open(rank));
      cuts_.push_back(std::make_unique<ShareCut>(table_, ranks, rank));
      shares_.emplace_back(cuts_[rank]->offsets.back());
      stored_.emplace_back(cuts_[rank]->pieces.size());
      digests_.emplace_back(cuts_[rank]->first_chunks.back());
      makers_.push_back(std::make_unique<ParityMaker>(ParityMaker::Group{.model = "net",
                                                                         .host = format("h{}", rank),
                                                                         .rank = rank,
                                                                         .ranks = ranks,
                                                                         .members = members,
                                                                         .losses = losses,
                                                                         .table = table_}));
    }
  }

  Version version(std::uint64_t number) const {
    return {.id = {.run = {1, 2}, .incarnation = 3, .sequence = number}, .number = number};
  }

  /// Some pieces change; all write what did, then all their parity.
  void write(std::uint64_t number, double changed) {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) write_shard(rank, number, changed);
    images_[number] = shares_;
    Source source(*this);
    Pace pace(0);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      const Status made = makers_[rank]->make(source, *open_[rank], version(number), number, pace, {});
      ASSERT_TRUE(made) << made.error().message();
    }
  }

  void lose(std::uint32_t rank) {
    open_[rank].reset();
    folders_[rank] = std::make_unique<TemporaryFolder>();
    open_[rank] = open(rank);
  }

  RestartPlanner planner(std::uint64_t number) const {
    std::vector<Inventory> inventories;
    for (const auto& folders : open_) {
      Inventory& inventory = inventories.emplace_back();
      for (const HeldShard& shard : folders->scan()) {
        inventory.held.push_back({.key = shard.key,
                                  .step = shard.step,
                                  .bytes_only = shard.bytes_only,
                                  .kind = shard.kind,
                                  .needs = shard.needs,
                                  .members = shard.members,
                                  .losses = shard.losses});
      }
      inventory = *decode_inventory(encode(inventory));
    }
    RestartChoice choice;
    choice.version = number;
    return {std::move(inventories), {}, choice};
  }

  /// Empty, or what went wrong with one shard.
  std::string rebuild(const RestartPlan& plan, std::uint32_t rank, std::vector<BadShard>& bad) {
    Source source(*this);
    const auto opened = ShardRebuild::open(source, plan, rank, bad);
    if (!opened) return opened.error().message();
    std::vector<std::byte> payload;
    for (;;) {
      const auto bytes = (*opened)->next(bad);
      if (!bytes) return bytes.error().message();
      if (!*bytes) break;
      payload.insert(payload.end(), (*bytes)->begin(), (*bytes)->end());
    }
    EXPECT_EQ((*opened)->header().payload_bytes, payload.size());
    EXPECT_TRUE((*opened)->header().needs().empty());
    const std::vector<std::byte>& expected = images_.at(plan.version.number)[rank];
    if (payload != expected) return "it is not what was written";
    return "";
  }

  std::string file_of(std::uint32_t rank, std::uint64_t number, const std::string& suffix) const {
    for (const auto& entry : std::filesystem::directory_iterator(folders_[rank]->path() + "/net")) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(format("{}.", number)) && name.ends_with(suffix)) return entry.path().string();
    }
    return "";
  }
  std::uint64_t bytes_of_parity(std::uint32_t rank, std::uint64_t number) const {
    return std::filesystem::file_size(file_of(rank, number, ".parity"));
  }
  std::uint64_t reads() const { return reads_; }
  void lose_table_of(std::uint32_t rank) { without_table_ = rank; }
  std::uint64_t share_bytes(std::uint32_t rank) const { return shares_[rank].size(); }
  Random& random() { return random_; }

 private:
  class Source final : public ShardSource {
   public:
    explicit Source(ParityWorld& world) : world_(world) {}
    Bytes head(const Holder& holder, std::uint32_t ranks) override {
      return FolderSource(*world_.open_[holder.holder]).head(holder, ranks);
    }
    Bytes table(std::uint32_t holder, const Digest&) override {
      if (holder == world_.without_table_) return fail(Code::not_found, "it was lost");
      return group::Answer(world_.table_->encoded);
    }
    std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) override {
      ++world_.reads_;
      return FolderSource(*world_.open_[holder.holder]).read(holder, ranks, std::move(ranges));
    }

   private:
    ParityWorld& world_;
  };
  struct StoredAt {
    Version store;
    std::uint64_t offset = 0;
  };

  std::unique_ptr<ShardFolders> open(std::uint32_t rank) const {
    return *ShardFolders::open(system_env(), {folders_[rank]->path()}, "net", rank);
  }

  void write_shard(std::uint32_t rank, std::uint64_t number, double changed) {
    const ShareCut& cut = *cuts_[rank];
    ShardHeader header{.model = "net",
                       .key = {.version = version(number), .rank = rank, .ranks = ranks_},
                       .step = number,
                       .host = "h",
                       .tensors = table_->digest,
                       .versions = {version(number)}};
    std::vector<std::byte> payload;
    for (std::size_t i = 0; i < cut.pieces.size(); ++i) {
      const std::uint64_t bytes = cut.pieces[i].piece.bytes();
      const MutableBytes own = MutableBytes(shares_[rank]).subspan(cut.offsets[i], bytes);
      if (number == 1 || std::uniform_real_distribution<>(0, 1)(random_) < changed) {
        const auto fresh = random_bytes(random_, bytes);
        std::memcpy(own.data(), fresh.data(), bytes);
        digest_piece(cut, i, own, digests_[rank]);
        stored_[rank][i] = {version(number), payload.size()};
        payload.insert(payload.end(), fresh.begin(), fresh.end());
        payload.resize(aligned_to_piece(payload.size()));
      }
      const StoredAt& at = stored_[rank][i];
      auto known = std::ranges::find(header.versions, at.store);
      const auto index = static_cast<std::uint32_t>(known - header.versions.begin());
      if (known == header.versions.end()) header.versions.push_back(at.store);
      header.records.push_back({.writer = index, .store = index, .offset = at.offset});
    }
    header.digests = digests_[rank];
    header.payload_bytes = payload.size();
    const Bytes view = payload;
    ASSERT_TRUE(open_[rank]->write_table(*table_));
    ASSERT_TRUE(open_[rank]->write(encode_shard_head(header), header.key, std::span(&view, 1), {}));
  }

  Random random_;
  std::uint64_t reads_ = 0;
  std::optional<std::uint32_t> without_table_;
  const std::uint32_t ranks_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<std::unique_ptr<TemporaryFolder>> folders_;
  std::vector<std::unique_ptr<ShardFolders>> open_;
  std::vector<std::unique_ptr<ShareCut>> cuts_;
  std::vector<std::vector<std::byte>> shares_;
  std::vector<std::vector<StoredAt>> stored_;
  std::vector<std::vector<Digest>> digests_;
  std::vector<std::unique_ptr<ParityMaker>> makers_;
  std::map<std::uint64_t, std::vector<std::vector<std::byte>>> images_;
};

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
    ParityWorld world(ranks, losses, random());
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
  ParityWorld world(4, 2, 7);
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
  ParityWorld world(3, 1, 17, 6000);
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
  ParityWorld world(4, 2, 19);
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
  ParityWorld world(3, 1, 23);
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

/// With one lost and one damaged of a group that survives two, the damage is named, and the others do.
TEST(Parity, DamageIsNamedAndPassedOver) {
  for (const std::string suffix : {".shard", ".parity"}) {
    SCOPED_TRACE(suffix);
    ParityWorld world(5, 2, 13);
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
