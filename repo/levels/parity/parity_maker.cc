// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/parity_maker.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/format.h"

namespace freshet::levels {
namespace {

/// Of a row, asked for before what is computed.
constexpr std::uint64_t kEncodeBytesAhead = 2 * kParityBlockBytes;

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
    return fail(Code::corrupt, format("parity of version {}: the list of digests was changed since it was written",
                                      header.key.version.number));
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
  for (const std::uint32_t rank : group_.members) {
    if (rank == group_.rank) position_ = static_cast<std::uint32_t>(pieces_.size());
    pieces_.push_back(stored_pieces(group_.table->tensors, group_.ranks, rank));
  }
  image_ = GroupImage(group_.table->tensors, pieces_, stripes_.data());
}

Result<std::vector<ShardHeader>> ParityMaker::heads_of(ShardSource& source, const Version& version) const {
  std::vector<ShardHeader> heads;
  for (std::size_t i = 0; i < group_.members.size(); ++i) {
    const std::uint32_t rank = group_.members[i];
    FRESHET_ASSIGN(ShardHeader header,
                   read_head(source, {.version = version, .shard_rank = rank, .holder = rank}, group_.ranks));
    if (header.tensors != group_.table->digest) return fail(Code::corrupt, format("rank {} has other tensors", rank));
    FRESHET_TRY(check_records(header, pieces_[i]));
    heads.push_back(std::move(header));
  }
  return heads;
}

/// Marks this rank's blocks that are computed from these bytes of that position's image.
void ParityMaker::mark(std::uint32_t position, std::uint64_t image_offset, std::uint64_t bytes,
                       std::vector<bool>& blocks) const {
  const std::size_t per_row = blocks.size() / stripes_.losses;
  while (bytes > 0) {
    const GroupImage::Place place = image_.place_of(image_offset);
    const std::uint64_t here = std::min(bytes, place.region->part_bytes - place.offset);
    const std::uint32_t stripe = stripes_.stripe_of_block(position, place.block);
    for (std::uint32_t row = 0; row < stripes_.losses; ++row) {
      if (stripes_.parity_at(stripe, row) != position_) continue;
      for (std::uint64_t block = place.offset / kParityBlockBytes;
           block <= (place.offset + here - 1) / kParityBlockBytes; ++block) {
        blocks[row * per_row + place.region->first_block + block] = true;
      }
    }
    image_offset += here;
    bytes -= here;
  }
}

/// The blocks that are computed from bytes that changed.
std::vector<bool> ParityMaker::changed_blocks(const Made& now) const {
  std::vector<bool> changed(now.header.records.size(), !last_);
  if (!last_) return changed;
  for (std::uint32_t position = 0; position < pieces_.size(); ++position) {
    std::size_t digest = 0;
    for (std::size_t i = 0; i < pieces_[position].size(); ++i) {
      const std::uint64_t bytes = pieces_[position][i].piece.bytes();
      for (std::uint64_t at = 0; at < bytes; at += kChunkBytes, ++digest) {
        if (now.shares[position].digests[digest] == last_->shares[position].digests[digest]) continue;
        mark(position, image_.offsets(position)[i] + at, std::min(kChunkBytes, bytes - at), changed);
      }
    }
  }
  return changed;
}

/// Which blocks are inherited, and where the others will be. The others.
std::vector<ParityMaker::Block> ParityMaker::fill_records(Made& now) const {
  ShardHeader& header = now.header;
  std::map<Version, std::uint32_t> known = {{header.key.version, 0}};
  const std::vector<bool> changed = changed_blocks(now);
  std::vector<Block> made;
  std::uint64_t payload = 0;
  std::size_t index = 0;
  const auto fill = [&](const Block& block) {
    PieceRecord& record = header.records[block.index];
    if (changed[block.index]) {
      record = {.writer = 0, .store = 0, .offset = payload};
      payload += block.bytes;
      made.push_back(block);
      return;
    }
    const PieceRecord& inherited = last_->header.records[block.index];
    const Version& store = last_->header.versions[inherited.store];
    const auto [at, is_new] = known.try_emplace(store, static_cast<std::uint32_t>(header.versions.size()));
    if (is_new) header.versions.push_back(store);
    record = {.writer = 0, .store = at->second, .offset = inherited.offset};
    now.digests[block.index] = last_->digests[block.index];
  };
  for (std::uint32_t row = 0; row < stripes_.losses; ++row) {
    for (const Region& region : image_.regions()) {
      for (std::uint64_t at = 0; at < region.part_bytes; at += kParityBlockBytes) {
        fill({.index = index++,
              .row = row,
              .region = &region,
              .offset = at,
              .bytes = std::min(kParityBlockBytes, region.part_bytes - at)});
      }
    }
  }
  header.payload_bytes = payload + (header.records.size() + 1) * kDigestBytes;
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
  parity = {.members = group_.members, .losses = stripes_.losses, .parts = image_.parts()};
  for (std::uint32_t back = 1; back <= stripes_.losses; ++back) {
    parity.heads.push_back(encode_shard_head(now.shares[(position_ + stripes_.ranks - back) % stripes_.ranks]));
  }
  header.records.resize(parity.block_count());
  now.digests.resize(header.records.size());
  const std::vector<Block> made = fill_records(now);

  std::vector<ShardImage> images;
  for (std::size_t i = 0; i < group_.members.size(); ++i) {
    const std::uint32_t rank = group_.members[i];
    std::map<Version, Holder> holders = {{version, {.version = version, .shard_rank = rank, .holder = rank}}};
    for (const Version& needed : now.shares[i].needs()) {
      holders[needed] = {.version = needed, .shard_rank = rank, .holder = rank};
    }
    FRESHET_ASSIGN(ImageChunks image,
                   image_of_shard(now.shares[i], pieces_[i], image_.offsets(static_cast<std::uint32_t>(i)), holders));
    images.emplace_back(source, group_.ranks, std::move(image));
  }
  const auto image_at = [&](const Block& block, std::uint32_t i) -> ShardImage& {
    return images[stripes_.data_at(stripes_.stripe_of_row(position_, block.row), i)];
  };
  const auto begin = [&](const Block& block) -> Status {
    FRESHET_TRY(pace.wait_for(block.bytes * stripes_.data(), hooks.stop));
    for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
      image_at(block, i).begin(block.region->begin + i * block.region->part_bytes + block.offset, block.bytes);
    }
    return {};
  };
  std::vector<std::vector<std::byte>> blocks(stripes_.data(), std::vector<std::byte>(kParityBlockBytes));
  std::vector<std::byte> out(kParityBlockBytes);
  std::vector<std::byte> trailer;
  std::size_t begun = 0;
  std::size_t done = 0;
  std::uint64_t ahead = 0;
  AtHalf at_half(made.size(), hooks.half);
  bool ended = false;
  const auto next = [&]() -> Result<std::optional<Bytes>> {
    if (hooks.stop && hooks.stop()) return fail(Code::cancelled, "stopped");
    at_half.reached(done);
    while (begun < made.size() && ahead <= kEncodeBytesAhead) {
      FRESHET_TRY(begin(made[begun]));
      ahead += made[begun++].bytes;
    }
    if (done < made.size()) {
      const Block& block = made[done++];
      const std::uint64_t bytes = block.bytes;
      ahead -= bytes;
      std::vector<BadShard> bad;
      std::vector<Bytes> data;
      for (std::uint32_t i = 0; i < stripes_.data(); ++i) {
        FRESHET_TRY(image_at(block, i).take(MutableBytes(blocks[i]).first(bytes), bad));
        data.push_back(Bytes(blocks[i]).first(bytes));
      }
      erasure_.encode(block.row, data, MutableBytes(out).first(bytes));
      now.digests[block.index] = digest_of(Bytes(out).first(bytes));
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
