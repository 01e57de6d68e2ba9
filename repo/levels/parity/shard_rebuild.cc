// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/shard_rebuild.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/format.h"
#include "repo/levels/parity/parity_maker.h"

namespace freshet::levels {
namespace {

// Asked for before what is computed.
constexpr std::uint64_t kRebuildBytesAhead = 4 * kReadBytes;
constexpr std::size_t kSegmentsAhead = 16;

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
    const std::uint64_t bytes = std::min(kReadBytes, trailer.bytes - all.size());
    FRESHET_ASSIGN(const group::Answer part,
                   source.read(holder, ranks, {{trailer.offset + all.size(), bytes}})->wait());
    if (part.bytes().size() != bytes) return fail(Code::corrupt, "a rank's answer is too short");
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
      FRESHET_ASSIGN(ShardHeader header, read_head(source, holder, plan.ranks));
      // Of other groups than the lost rank's.
      if (!std::ranges::binary_search(header.parity->members, rank_)) return {};
      if (!found.empty()) {
        const ShardHeader& first = found.begin()->second.first;
        if (header.parity->members != first.parity->members || header.parity->losses != first.parity->losses ||
            header.parity->parts != first.parity->parts || header.tensors != first.tensors) {
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
      if (is_no_damage(taken.error())) return taken;
      bad.push_back(bad_at(holder, taken.error().message()));
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
  stripes_ = {.ranks = static_cast<std::uint32_t>(group_.members.size()), .losses = group_.losses};
  erasure_ = Erasure(stripes_.data(), stripes_.losses);
  shares_.resize(group_.members.size());
  rows_.resize(group_.members.size());
  for (const auto& [rank, entry] : found) {
    const auto& [header, holder] = entry;
    const auto digests = read_digests(source, holder, plan.ranks, header);
    if (!digests) {
      if (is_no_damage(digests.error())) return fail(digests.error());
      bad.push_back({holder, digests.error().message()});
      continue;
    }
    const auto holders = holders_of_all(plan, header, holder);
    if (!holders) continue;
    FRESHET_ASSIGN(ImageChunks rows, image_of_parity(header, *digests, *holders));
    rows_[group_.position_of(rank)].emplace(source, plan.ranks, std::move(rows));
  }
  return {};
}

/// The shares of the others that are left; and the cut of all.
Status ShardRebuild::find_shares(ShardSource& source, const RestartPlan& plan, std::vector<BadShard>& bad) {
  FRESHET_ASSIGN(table_, find_table(source, plan, parity_holders_.front().holder, header_.tensors));
  std::vector<std::vector<StoredPiece>> all_pieces;
  for (const std::uint32_t rank : group_.members) {
    all_pieces.push_back(stored_pieces(table_->tensors, plan.ranks, rank));
  }
  image_ = GroupImage(table_->tensors, all_pieces, stripes_.data());
  if (image_.parts() != group_.parts) {
    for (const Holder& holder : parity_holders_) bad.push_back({holder, "its rows are not as long as its shares need"});
    return fail(Code::corrupt, bad.back().why);
  }
  pieces_ = all_pieces[position_];
  FRESHET_TRY(check_records(header_, pieces_));
  for (std::uint32_t position = 0; position < group_.members.size(); ++position) {
    const std::uint32_t rank = group_.members[position];
    if (rank == rank_) continue;
    const std::vector<StoredPiece>& pieces = all_pieces[position];
    for (const Holder& holder : plan.holders) {
      if (holder.kind == ShardKind::parity || holder.version != plan.version || holder.shard_rank != rank) continue;
      const auto take = [&]() -> Result<ShardHeader> {
        FRESHET_ASSIGN(ShardHeader header, read_head(source, holder, plan.ranks));
        if (header.tensors != header_.tensors)
          return fail(Code::corrupt, "its tensors differ from those of the parity");
        FRESHET_TRY(check_records(header, pieces));
        return header;
      };
      const Result<ShardHeader> header = take();
      if (!header) {
        if (is_no_damage(header.error())) return fail(header.error());
        bad.push_back(bad_at(holder, header.error().message()));
        continue;
      }
      const auto holders = holders_of_all(plan, *header, holder);
      if (!holders) continue;
      FRESHET_ASSIGN(ImageChunks image, image_of_shard(*header, pieces, image_.offsets(position), *holders));
      shares_[position].emplace(source, plan.ranks, std::move(image));
      break;
    }
  }
  // Everything is stored here from now on, as it lies in memory.
  const auto self = std::ranges::find(header_.versions, plan.version);
  const auto store = static_cast<std::uint32_t>(self - header_.versions.begin());
  if (self == header_.versions.end()) header_.versions.push_back(plan.version);
  const std::vector<std::uint64_t> in_memory = memory_offsets(pieces_);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    header_.records[i].store = store;
    header_.records[i].offset = in_memory[i];
  }
  header_.payload_bytes = in_memory.back();
  return {};
}

/// The next bytes that are to be computed, within one block and what next() gives at once; asked for.
Result<std::optional<ShardRebuild::Segment>> ShardRebuild::next_segment() {
  while (asked_piece_ < pieces_.size() && asked_at_ == pieces_[asked_piece_].piece.bytes()) {
    ++asked_piece_;
    asked_at_ = 0;
  }
  if (asked_piece_ == pieces_.size()) return std::optional<Segment>();
  const GroupImage::Place place = image_.place_of(image_.offsets(position_)[asked_piece_] + asked_at_);
  const Region& region = *place.region;
  const std::uint64_t of_piece = pieces_[asked_piece_].piece.bytes() - asked_at_;
  const std::uint64_t of_read = kReadBytes - asked_at_ % kReadBytes;
  const std::uint32_t stripe = stripes_.stripe_of_block(position_, place.block);
  Segment segment{.block = place.block, .bytes = std::min({of_piece, of_read, region.part_bytes - place.offset})};
  asked_at_ += segment.bytes;
  const auto use = [&](std::uint32_t block, std::uint64_t offset, std::optional<ShardImage>& image) {
    if (!image || segment.have.size() == stripes_.data()) return;
    segment.have.push_back(block);
    segment.images.push_back(&*image);
    image->begin(offset, segment.bytes);
  };
  for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
    const std::uint32_t position = stripes_.data_at(stripe, i);
    if (position != position_) use(i, region.begin + i * region.part_bytes + place.offset, shares_[position]);
  }
  for (std::uint32_t row = 0; row < stripes_.losses; ++row) {
    use(stripes_.data() + row, row * image_.row_bytes() + region.row_begin + place.offset,
        rows_[stripes_.parity_at(stripe, row)]);
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
  const std::uint64_t bytes = std::min(kReadBytes, left);
  bytes_.assign(bytes == left ? aligned_to_piece(bytes) : bytes, std::byte{0});
  for (std::uint64_t filled = 0; filled < bytes;) {
    while (begun_bytes_ <= kRebuildBytesAhead && begun_.size() <= kSegmentsAhead) {
      FRESHET_ASSIGN(std::optional<Segment> segment, next_segment());
      if (!segment) break;
      begun_bytes_ += segment->bytes;
      begun_.push_back(*std::move(segment));
    }
    const std::uint64_t next = begun_.front().bytes;
    begun_bytes_ -= next;
    FRESHET_TRY(finish_first(MutableBytes(bytes_).subspan(filled, next), bad));
    filled += next;
  }
  for (std::uint64_t chunk = 0; chunk < bytes; chunk += kChunkBytes) {
    const Bytes written = Bytes(bytes_).subspan(chunk, std::min(kChunkBytes, bytes - chunk));
    if (digest_of(written) == header_.digests[digest_++]) continue;
    for (const Holder& holder : parity_holders_) {
      bad.push_back({holder, format("version {}: what the parity of rank {} gives is not what rank {} wrote",
                                    header_.key.version.number, holder.shard_rank, rank_)});
    }
    return fail(Code::corrupt, bad.back().why);
  }
  at_ += bytes;
  return std::optional<Bytes>(bytes_);
}

}  // namespace freshet::levels
