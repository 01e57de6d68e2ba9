// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A group's ranks with folders and parity, without a job.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/env.h"
#include "core/base/format.h"
#include "repo/levels/parity/parity_maker.h"
#include "repo/levels/parity/shard_rebuild.h"
#include "repo/levels/shards/share.h"
#include "repo/levels/terms/ring.h"
#include "tests/support/temporary_folder.h"

namespace freshet::levels {

using Random = std::mt19937_64;

inline std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, count - at));
  }
  return bytes;
}

inline std::vector<LaidTensor> equal_tensors(std::size_t count, std::uint64_t bytes, Layout layout = {}) {
  std::vector<LaidTensor> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back({.spec = {.name = format("e{}", i), .dtype = DType::u8, .shape = {bytes}}, .layout = layout});
  }
  return tensors;
}

/// A few of any size and layout.
inline std::vector<LaidTensor> any_tensors(Random& random) {
  std::vector<LaidTensor> tensors;
  const std::size_t count = 1 + random() % 9;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t most = random() % 3 == 0 ? 100 : random() % 2 == 0 ? 300'000 : 4'000'000;
    tensors.push_back({.spec = {.name = format("t{}", i), .dtype = DType::u8, .shape = {random() % most}},
                       .layout = {.cut = random() % 2 == 0 ? Cut::replicated : static_cast<Cut>(random() % 5)}});
    const Cut cut = tensors.back().layout.cut;
    if (cut == Cut::on || cut == Cut::from) {
      tensors.back().layout.argument = static_cast<std::uint32_t>(random() % kGroupRanksMax);
    }
    if (cut == Cut::own) tensors.back().spec.shape = {random() % 500'000};
  }
  return tensors;
}

/// A job's ranks, each with a folder, without the job: versions are written, hosts are lost, shards are rebuilt.
class ParityWorld {
 public:
  ParityWorld(std::uint32_t ranks, std::uint32_t losses, std::uint64_t seed, std::vector<LaidTensor> tensors)
      : random_(seed), ranks_(ranks) {
    table_ = TensorTable::of(whole_tensors(tensors, ranks));
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
    write_where(number, [&](std::uint32_t) { return std::uniform_real_distribution<>(0, 1)(random_) < changed; });
  }
  /// The pieces of these tensors change.
  void write_where(std::uint64_t number, const std::function<bool(std::uint32_t tensor)>& changes) {
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) write_shard(rank, number, changes);
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

  /// `lost`: a bit for each rank whose host is as good as lost.
  RestartPlanner planner(std::uint64_t number, std::uint32_t lost = 0) const {
    std::vector<Inventory> inventories;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      Inventory& inventory = inventories.emplace_back();
      if ((lost >> rank & 1U) != 0) continue;
      for (const HeldShard& shard : open_[rank]->scan()) inventory.held.push_back(offered(shard));
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
  std::uint64_t read_bytes() const { return read_bytes_; }
  void lose_table_of(std::uint32_t rank) { without_table_ = rank; }
  /// The n-th question from now on gets no answer; 0: each gets one.
  void break_question(std::uint64_t nth) {
    broken_ = nth;
    asked_ = 0;
  }
  std::uint64_t asked() const { return asked_; }
  std::uint64_t share_bytes(std::uint32_t rank) const { return shares_[rank].size(); }
  Random& random() { return random_; }

 private:
  class Source final : public ShardSource {
   public:
    explicit Source(ParityWorld& world) : world_(world) {}
    Bytes head(const Holder& holder, std::uint32_t ranks) override {
      if (world_.is_broken()) return silence();
      return FolderSource(*world_.open_[holder.holder]).head(holder, ranks);
    }
    Bytes table(std::uint32_t holder, const Digest&) override {
      if (world_.is_broken()) return silence();
      if (holder == world_.without_table_) return fail(Code::not_found, "it was lost");
      return group::Answer(world_.table_->encoded);
    }
    std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) override {
      ++world_.reads_;
      for (const ByteRange& range : ranges) world_.read_bytes_ += range.bytes;
      if (world_.is_broken()) return std::make_unique<Silence>();
      return FolderSource(*world_.open_[holder.holder]).read(holder, ranks, std::move(ranges));
    }

   private:
    static Bytes silence() { return fail(Code::unavailable, "the connection ended"); }
    struct Silence final : Pending {
      Bytes wait() override { return silence(); }
    };
    ParityWorld& world_;
  };
  bool is_broken() { return ++asked_ == broken_; }
  struct StoredAt {
    Version store;
    std::uint64_t offset = 0;
  };

  std::unique_ptr<ShardFolders> open(std::uint32_t rank) const {
    return *ShardFolders::open(system_env(), {folders_[rank]->path()}, "net", rank);
  }

  void write_shard(std::uint32_t rank, std::uint64_t number, const std::function<bool(std::uint32_t tensor)>& changes) {
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
      if (number == 1 || changes(cut.pieces[i].piece.tensor)) {
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
  std::uint64_t read_bytes_ = 0;
  std::uint64_t asked_ = 0;
  std::uint64_t broken_ = 0;
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

}  // namespace freshet::levels
