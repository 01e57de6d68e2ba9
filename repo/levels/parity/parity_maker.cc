// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/parity_maker.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "core/base/little_endian.h"

namespace freshet::levels {
namespace {

constexpr std::size_t kBlocksAhead = 2;  ///< That are asked for before the one that is computed.

std::vector<std::byte> encode_digests(std::span<const Digest> digests) {
  std::vector<std::byte> bytes((digests.size() + 1) * kDigestBytes);
  const auto put = [&](std::size_t i, const Digest& digest) {
    store_little_endian(bytes.data() + i * kDigestBytes, digest.low);
    store_little_endian(bytes.data() + i * kDigestBytes + sizeof(std::uint64_t), digest.high);
  };
  for (std::size_t i = 0; i < digests.size(); ++i) put(i, digests[i]);
  put(digests.size(), digest_of(Bytes(bytes).first(digests.size() * kDigestBytes)));
  return bytes;
}

Digest digest_at(Bytes bytes) {
  return {.low = load_little_endian<std::uint64_t>(bytes.data()),
          .high = load_little_endian<std::uint64_t>(bytes.data() + sizeof(std::uint64_t))};
}

}  // namespace

ByteRange parity_trailer(const ShardHeader& header) {
  const std::uint64_t bytes = (header.records.size() + 1) * kDigestBytes;
  return {.offset = header.payload_bytes - std::min(bytes, header.payload_bytes), .bytes = bytes};
}

Result<std::vector<Digest>> parity_digests(const ShardHeader& header, Bytes trailer) {
  const std::size_t listed = header.records.size() * kDigestBytes;
  if (trailer.size() != listed + kDigestBytes ||
      digest_of(trailer.first(listed)) != digest_at(trailer.subspan(listed))) {
    return fail(Code::corrupt,
                format("parity of version {}: its list of digests is not what was written", header.key.version.number));
  }
  std::vector<Digest> digests;
  for (std::size_t i = 0; i < header.records.size(); ++i)
    digests.push_back(digest_at(trailer.subspan(i * kDigestBytes)));
  return digests;
}

ParityMaker::ParityMaker(Group group)
    : group_(std::move(group)),
      stripes_{.ranks = static_cast<std::uint32_t>(group_.members.size()), .losses = group_.losses},
      erasure_(stripes_.data(), stripes_.losses) {
  std::uint64_t most = 0;
  for (const std::uint32_t rank : group_.members) {
    if (rank == group_.rank) position_ = static_cast<std::uint32_t>(pieces_.size());
    pieces_.push_back(stored_pieces(group_.table->tensors, group_.ranks, rank));
    offsets_.push_back(memory_offsets(pieces_.back()));
    first_chunks_.push_back(first_chunks(pieces_.back()));
    most = std::max(most, offsets_.back().back());
  }
  stripes_.row_bytes = Stripes::row_bytes_for(most, stripes_.data(), kPieceAlignment);
}

Result<std::vector<ShardHeader>> ParityMaker::heads_of(ShardSource& source, const Version& version) const {
  std::vector<ShardHeader> heads;
  for (std::size_t i = 0; i < group_.members.size(); ++i) {
    const std::uint32_t rank = group_.members[i];
    FRESHET_ASSIGN(const group::Answer bytes,
                   source.head({.version = version, .shard_rank = rank, .holder = rank}, group_.ranks));
    FRESHET_ASSIGN(ShardHeader header, decode_shard_head(bytes.bytes()));
    const ShardKey key{.version = version, .rank = rank, .ranks = group_.ranks};
    if (header.key != key || header.tensors != group_.table->digest) {
      return fail(Code::corrupt, format("rank {} answered with another shard's head", rank));
    }
    FRESHET_TRY(check_records(header, pieces_[i]));
    heads.push_back(std::move(header));
  }
  return heads;
}

/// Whether no share changed in what this block is computed from.
bool ParityMaker::is_unchanged(const Made& now, std::uint64_t block) const {
  const ParityOf& parity = *now.header.parity;
  const std::uint64_t per_row = parity.blocks() / parity.losses;
  const std::uint32_t stripe = stripes_.stripe_of_row(position_, static_cast<std::uint32_t>(block / per_row));
  for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
    const std::uint32_t position = stripes_.data_at(stripe, i);
    const std::uint64_t begin = i * stripes_.row_bytes + block % per_row * kChunkBytes;
    const std::uint64_t end = begin + parity.block_bytes(block);
    const std::vector<StoredPiece>& pieces = pieces_[position];
    const std::vector<std::uint64_t>& offsets = offsets_[position];
    auto piece = static_cast<std::size_t>(std::ranges::upper_bound(offsets, begin) - offsets.begin());
    for (piece -= std::min<std::size_t>(piece, 1); piece < pieces.size() && offsets[piece] < end; ++piece) {
      const std::uint64_t from = begin > offsets[piece] ? (begin - offsets[piece]) / kChunkBytes : 0;
      for (std::uint64_t at = from * kChunkBytes; at < pieces[piece].piece.bytes() && offsets[piece] + at < end;
           at += kChunkBytes) {
        const std::uint64_t chunk = first_chunks_[position][piece] + at / kChunkBytes;
        if (now.shares[position].digests[chunk] != last_->shares[position].digests[chunk]) return false;
      }
    }
  }
  return true;
}

/// Which blocks are inherited, and where the others will be. The others.
std::vector<std::uint64_t> ParityMaker::fill_records(Made& now) const {
  ShardHeader& header = now.header;
  std::map<Version, std::uint32_t> known = {{header.key.version, 0}};
  std::vector<std::uint64_t> made;
  std::uint64_t at = 0;
  for (std::uint64_t block = 0; block < header.records.size(); ++block) {
    PieceRecord& record = header.records[block];
    if (last_ && is_unchanged(now, block)) {
      const PieceRecord& inherited = last_->header.records[block];
      const Version& store = last_->header.versions[inherited.store];
      const auto [index, is_new] = known.try_emplace(store, static_cast<std::uint32_t>(header.versions.size()));
      if (is_new) header.versions.push_back(store);
      record = {.writer = 0, .store = index->second, .offset = inherited.offset};
      now.digests[block] = last_->digests[block];
      continue;
    }
    record = {.writer = 0, .store = 0, .offset = at};
    at += header.parity->block_bytes(block);
    made.push_back(block);
  }
  header.payload_bytes = at + (header.records.size() + 1) * kDigestBytes;
  return made;
}

Status ParityMaker::make(ShardSource& source, ShardFolders& folders, const Version& version, std::uint64_t step,
                         Pace& pace, const Hooks& hooks) {
  FRESHET_ASSIGN(std::vector<ShardHeader> shares, heads_of(source, version));
  Made now{.shares = std::move(shares)};
  ShardHeader& header = now.header;
  header = {.model = group_.model,
            .key = {.version = version, .rank = group_.rank, .ranks = group_.ranks},
            .step = step,
            .created_unix_ns = system_clock().unix_ns(),
            .host = group_.host,
            .tensors = group_.table->digest,
            .versions = {version}};
  ParityOf& parity = header.parity.emplace();
  parity = {.members = group_.members, .losses = stripes_.losses, .row_bytes = stripes_.row_bytes};
  for (std::uint32_t back = 1; back <= stripes_.losses; ++back) {
    parity.heads.push_back(encode_shard_head(now.shares[(position_ + stripes_.ranks - back) % stripes_.ranks]));
  }
  header.records.resize(parity.blocks());
  now.digests.resize(parity.blocks());
  const std::vector<std::uint64_t> made = fill_records(now);

  std::vector<ShardImage> images;
  for (std::size_t i = 0; i < group_.members.size(); ++i) {
    const std::uint32_t rank = group_.members[i];
    std::map<Version, Holder> holders = {{version, {.version = version, .shard_rank = rank, .holder = rank}}};
    for (const Version& needed : now.shares[i].needs()) {
      holders[needed] = {.version = needed, .shard_rank = rank, .holder = rank};
    }
    FRESHET_ASSIGN(std::vector<ImageChunk> chunks, image_of_shard(now.shares[i], pieces_[i], holders));
    images.emplace_back(source, group_.ranks, std::move(chunks));
  }
  const std::uint64_t per_row = parity.blocks() / parity.losses;
  const auto stripe_of = [&](std::uint64_t block) {
    return stripes_.stripe_of_row(position_, static_cast<std::uint32_t>(block / per_row));
  };
  const auto begin = [&](std::uint64_t block) -> Status {
    const std::uint64_t bytes = parity.block_bytes(block);
    constexpr Duration kNap = std::chrono::milliseconds(50);
    for (Duration left = pace.before(bytes * stripes_.data()); left > Duration::zero(); left -= kNap) {
      if (hooks.stop && hooks.stop()) return fail(Code::cancelled, "stopped");
      std::this_thread::sleep_for(std::min(left, kNap));
    }
    for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
      images[stripes_.data_at(stripe_of(block), i)].begin(i * stripes_.row_bytes + block % per_row * kChunkBytes,
                                                          bytes);
    }
    return {};
  };
  std::vector<std::vector<std::byte>> blocks(stripes_.data(), std::vector<std::byte>(kChunkBytes));
  std::vector<std::byte> out(kChunkBytes);
  std::vector<std::byte> trailer;
  std::size_t begun = 0;
  std::size_t done = 0;
  bool told = false;
  bool ended = false;
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    if (hooks.stop && hooks.stop()) return fail(Code::cancelled, "stopped");
    if (!told && done * 2 >= made.size()) {
      told = true;
      if (hooks.half) hooks.half();
    }
    while (begun < made.size() && begun <= done + kBlocksAhead) FRESHET_TRY(begin(made[begun++]));
    if (done < made.size()) {
      const std::uint64_t block = made[done++];
      const std::uint64_t bytes = parity.block_bytes(block);
      std::vector<BadShard> bad;
      std::vector<Bytes> data;
      for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
        FRESHET_TRY(images[stripes_.data_at(stripe_of(block), i)].take(MutableBytes(blocks[i]).first(bytes), bad));
        data.push_back(Bytes(blocks[i]).first(bytes));
      }
      erasure_.encode(static_cast<std::uint32_t>(block / per_row), data, MutableBytes(out).first(bytes));
      now.digests[block] = digest_of(Bytes(out).first(bytes));
      return std::optional(Bytes(out).first(bytes));
    }
    if (std::exchange(ended, true)) return std::optional<Bytes>();
    trailer = encode_digests(now.digests);
    return std::optional<Bytes>(trailer);
  };
  FRESHET_TRY(folders.write_table(*group_.table));
  FRESHET_TRY(folders.write_streamed(encode_shard_head(header), header.key, ShardKind::parity, false, next));
  last_ = std::move(now);
  return {};
}

}  // namespace freshet::levels
