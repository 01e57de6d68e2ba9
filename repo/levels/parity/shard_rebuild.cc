// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/shard_rebuild.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/parity/parity_maker.h"

namespace freshet::levels {
namespace {

constexpr std::size_t kSegmentsAhead = 4;  ///< That are asked for before the one that is computed.

/// Of the holders of `store`'s shard, or parity, of that rank the first.
std::optional<Holder> first_holder(const RestartPlan& plan, const Version& store, std::uint32_t rank, bool parity) {
  for (const Holder& holder : plan.holders) {
    const bool is_parity = holder.kind == ShardKind::parity;
    if (holder.version == store && holder.shard_rank == rank && is_parity == parity) return holder;
  }
  return std::nullopt;
}

/// Whom to ask for everything that the shard needs; nothing when somebody is missing.
std::optional<std::map<Version, Holder>> holders_of_all(const RestartPlan& plan, const ShardHeader& header,
                                                        const Holder& holder) {
  std::map<Version, Holder> holders = {{header.key.version, holder}};
  for (const Version& needed : header.needs()) {
    // Who has a share in memory has all of it.
    const auto found = holder.in_memory ? std::optional(holder)
                                        : first_holder(plan, needed, header.key.rank, header.parity.has_value());
    if (!found) return std::nullopt;
    holders[needed] = *found;
  }
  return holders;
}

/// The end of a parity shard's payload, in parts that an answer may have.
Result<std::vector<Digest>> read_digests(ShardSource& source, const Holder& holder, std::uint32_t ranks,
                                         const ShardHeader& header) {
  const ByteRange trailer = parity_trailer(header);
  std::vector<std::byte> all;
  while (all.size() < trailer.bytes) {
    const std::uint64_t bytes = std::min(kChunkBytes, trailer.bytes - all.size());
    FRESHET_ASSIGN(const group::Answer part,
                   source.read(holder, ranks, {{trailer.offset + all.size(), bytes}})->wait());
    if (part.bytes().size() != bytes) return fail(Code::corrupt, "an answer is too short");
    all.insert(all.end(), part.bytes().begin(), part.bytes().end());
  }
  return parity_digests(header, all);
}

}  // namespace

std::vector<BadShard> parity_is_useless(const RestartPlan& plan, std::uint32_t rank, const Error& why) {
  std::vector<BadShard> bad;
  for (const Holder& holder : plan.holders) {
    if (holder.kind != ShardKind::parity || holder.version != plan.version) continue;
    bad.push_back({holder, format("version {}: the shard of rank {} cannot be rebuilt: {}", plan.version.number, rank,
                                  why.message())});
  }
  return bad;
}

Result<std::unique_ptr<ShardRebuild>> ShardRebuild::open(ShardSource& source, const RestartPlan& plan,
                                                         std::uint32_t rank, std::vector<BadShard>& bad) {
  auto opened = std::unique_ptr<ShardRebuild>(new ShardRebuild());
  opened->rank_ = rank;
  FRESHET_TRY(opened->find_parity(source, plan, bad));
  FRESHET_TRY(opened->find_shares(source, plan, bad));
  return opened;
}

/// The group, the lost rank's head, and the rows that are left.
Status ShardRebuild::find_parity(ShardSource& source, const RestartPlan& plan, std::vector<BadShard>& bad) {
  std::map<std::uint32_t, std::pair<ShardHeader, Holder>> found;  // By rank.
  std::optional<ShardHeader> lost;
  for (const Holder& holder : plan.holders) {
    if (holder.kind != ShardKind::parity || holder.version != plan.version) continue;
    const auto take = [&]() -> Status {
      FRESHET_ASSIGN(const group::Answer bytes, source.head(holder, plan.ranks));
      FRESHET_ASSIGN(ShardHeader header, decode_shard_head(bytes.bytes()));
      const ShardKey wanted{.version = plan.version, .rank = holder.shard_rank, .ranks = plan.ranks};
      if (header.key != wanted || !header.parity) return fail(Code::corrupt, "this is the head of another shard");
      // Of other groups than the lost rank's.
      if (!std::ranges::binary_search(header.parity->members, rank_)) return {};
      if (!found.empty()) {
        const ShardHeader& first = found.begin()->second.first;
        if (header.parity->members != first.parity->members || header.parity->losses != first.parity->losses ||
            header.parity->row_bytes != first.parity->row_bytes || header.tensors != first.tensors) {
          return fail(Code::corrupt, "its groups differ from those of the first parity shard");
        }
      }
      for (const std::vector<std::byte>& one : header.parity->heads) {
        auto head = decode_shard_head(one);
        if (!head) return fail(std::move(head).error());
        const bool is_it = head->key.version == plan.version && head->key.rank == rank_ &&
                           head->key.ranks == plan.ranks && head->tensors == header.tensors && !head->parity;
        if (is_it) lost = *std::move(head);
      }
      parity_holders_.push_back(holder);
      found.try_emplace(holder.shard_rank, std::move(header), holder);
      return {};
    };
    if (const Status taken = take(); !taken) {
      bad.push_back({holder, format("version {}, parity of rank {} at rank {}: {}", plan.version.number,
                                    holder.shard_rank, holder.holder, taken.error().message())});
    }
  }
  if (!lost) {
    // Nobody who is asked again would know more.
    for (const Holder& holder : parity_holders_) {
      bad.push_back({holder, format("version {}: the parity of rank {} does not have rank {}'s head",
                                    plan.version.number, holder.shard_rank, rank_)});
    }
    return fail(Code::corrupt,
                format("version {}: no rank has the head of rank {}'s shard", plan.version.number, rank_));
  }
  header_ = *std::move(lost);
  group_ = *found.begin()->second.first.parity;
  position_ = group_.position_of(rank_);
  stripes_ = {.ranks = static_cast<std::uint32_t>(group_.members.size()),
              .losses = group_.losses,
              .row_bytes = group_.row_bytes};
  erasure_ = Erasure(stripes_.data(), stripes_.losses);
  shares_.resize(group_.members.size());
  rows_.resize(group_.members.size());
  for (const auto& [rank, entry] : found) {
    const auto& [header, holder] = entry;
    const auto digests = read_digests(source, holder, plan.ranks, header);
    if (!digests) {
      bad.push_back({holder, digests.error().message()});
      continue;
    }
    const auto holders = holders_of_all(plan, header, holder);
    if (!holders) continue;
    FRESHET_ASSIGN(std::vector<ImageChunk> chunks, image_of_parity(header, *digests, *holders));
    rows_[group_.position_of(rank)].emplace(source, plan.ranks, std::move(chunks));
  }
  return {};
}

/// The shares of the others that are left; and the cut of all.
Status ShardRebuild::find_shares(ShardSource& source, const RestartPlan& plan, std::vector<BadShard>& bad) {
  FRESHET_ASSIGN(table_, find_table(source, plan, parity_holders_.front().holder, header_.tensors));
  std::uint64_t most = 0;
  for (std::uint32_t position = 0; position < group_.members.size(); ++position) {
    const std::uint32_t rank = group_.members[position];
    const std::vector<StoredPiece> pieces = stored_pieces(table_->tensors, plan.ranks, rank);
    most = std::max(most, memory_offsets(pieces).back());
    if (rank == rank_) {
      FRESHET_TRY(check_records(header_, pieces));
      pieces_ = pieces;
      offsets_ = memory_offsets(pieces);
      continue;
    }
    for (const Holder& holder : plan.holders) {
      if (holder.kind == ShardKind::parity || holder.version != plan.version || holder.shard_rank != rank) continue;
      const auto take = [&]() -> Result<ShardHeader> {
        FRESHET_ASSIGN(const group::Answer bytes, source.head(holder, plan.ranks));
        FRESHET_ASSIGN(ShardHeader header, decode_shard_head(bytes.bytes()));
        const ShardKey wanted{.version = plan.version, .rank = rank, .ranks = plan.ranks};
        if (header.key != wanted || header.tensors != header_.tensors || header.parity) {
          return fail(Code::corrupt, "this is the head of another shard");
        }
        FRESHET_TRY(check_records(header, pieces));
        return header;
      };
      const Result<ShardHeader> header = take();
      if (!header) {
        bad.push_back({holder, format("version {}, shard of rank {} at rank {}: {}", plan.version.number, rank,
                                      holder.holder, header.error().message())});
        continue;
      }
      const auto holders = holders_of_all(plan, *header, holder);
      if (!holders) continue;
      FRESHET_ASSIGN(std::vector<ImageChunk> chunks, image_of_shard(*header, pieces, *holders));
      shares_[position].emplace(source, plan.ranks, std::move(chunks));
      break;
    }
  }
  if (Stripes::row_bytes_for(most, stripes_.data(), kPieceAlignment) != stripes_.row_bytes) {
    for (const Holder& holder : parity_holders_) bad.push_back({holder, "its rows are not as long as its shares need"});
    return fail(Code::corrupt, bad.back().why);
  }
  // Everything is stored here from now on, as it lies in memory.
  const auto self = std::ranges::find(header_.versions, plan.version);
  const auto store = static_cast<std::uint32_t>(self - header_.versions.begin());
  if (self == header_.versions.end()) header_.versions.push_back(plan.version);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    header_.records[i].store = store;
    header_.records[i].offset = offsets_[i];
  }
  header_.payload_bytes = offsets_.back();
  return {};
}

/// The next bytes that are to be computed, within one chunk and one row; asked for.
Result<std::optional<ShardRebuild::Segment>> ShardRebuild::next_segment() {
  while (asked_piece_ < pieces_.size() && asked_at_ == pieces_[asked_piece_].piece.bytes()) {
    ++asked_piece_;
    asked_at_ = 0;
  }
  if (asked_piece_ == pieces_.size()) return std::optional<Segment>();
  const std::uint64_t at = offsets_[asked_piece_] + asked_at_;
  const std::uint64_t of_piece = pieces_[asked_piece_].piece.bytes() - asked_at_;
  const std::uint64_t of_chunk = kChunkBytes - asked_at_ % kChunkBytes;
  const std::uint64_t in_row = at % stripes_.row_bytes;
  Segment segment{.block = static_cast<std::uint32_t>(at / stripes_.row_bytes),
                  .bytes = std::min({of_piece, of_chunk, stripes_.row_bytes - in_row})};
  asked_at_ += segment.bytes;
  const std::uint32_t stripe = stripes_.stripe_of_block(position_, segment.block);
  const auto use = [&](std::uint32_t block, std::uint32_t row, std::optional<ShardImage>& image) {
    if (!image || segment.have.size() == stripes_.data()) return;
    segment.have.push_back(block);
    segment.images.push_back(&*image);
    image->begin(row * stripes_.row_bytes + in_row, segment.bytes);
  };
  for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
    const std::uint32_t position = stripes_.data_at(stripe, i);
    if (position != position_) use(i, i, shares_[position]);
  }
  for (std::uint32_t row = 0; row < stripes_.losses; ++row) {
    use(stripes_.data() + row, row, rows_[stripes_.parity_at(stripe, row)]);
  }
  if (segment.have.size() < stripes_.data()) {
    return fail(Code::corrupt, format("version {}: of the stripes that rank {}'s shard is in, {} of {} blocks are left",
                                      header_.key.version.number, rank_, segment.have.size(), stripes_.data()));
  }
  return std::optional(std::move(segment));
}

Status ShardRebuild::finish_first(MutableBytes out, std::vector<BadShard>& bad) {
  const Segment segment = std::move(begun_.front());
  begun_.pop_front();
  std::vector<std::vector<std::byte>> blocks(segment.images.size(), std::vector<std::byte>(segment.bytes));
  std::vector<Bytes> views;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    FRESHET_TRY(segment.images[i]->take(blocks[i], bad));
    views.emplace_back(blocks[i]);
  }
  erasure_.rebuild(segment.have, views, segment.block, out);
  return {};
}

Result<std::optional<Bytes>> ShardRebuild::next(std::vector<BadShard>& bad) {
  while (piece_ < pieces_.size() && at_ == pieces_[piece_].piece.bytes()) {
    ++piece_;
    at_ = 0;
  }
  if (piece_ == pieces_.size()) return std::optional<Bytes>();
  const std::uint64_t left = pieces_[piece_].piece.bytes() - at_;
  const std::uint64_t bytes = std::min(kChunkBytes, left);
  chunk_.assign(bytes == left ? aligned_to_piece(bytes) : bytes, std::byte{0});
  for (std::uint64_t filled = 0; filled < bytes;) {
    while (begun_.size() <= kSegmentsAhead) {
      FRESHET_ASSIGN(std::optional<Segment> segment, next_segment());
      if (!segment) break;
      begun_.push_back(*std::move(segment));
    }
    const std::uint64_t next = begun_.front().bytes;
    FRESHET_TRY(finish_first(MutableBytes(chunk_).subspan(filled, next), bad));
    filled += next;
  }
  if (digest_of(Bytes(chunk_).first(bytes)) != header_.digests[digest_++]) {
    for (const Holder& holder : parity_holders_) {
      bad.push_back({holder, format("version {}: what the parity of rank {} gives is not what rank {} wrote",
                                    header_.key.version.number, holder.shard_rank, rank_)});
    }
    return fail(Code::corrupt, bad.back().why);
  }
  at_ += bytes;
  return std::optional<Bytes>(chunk_);
}

}  // namespace freshet::levels
