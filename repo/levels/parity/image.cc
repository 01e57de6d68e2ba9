// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/parity/image.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/base/format.h"

namespace freshet::levels {
namespace {

/// One question asks for so much at most; a chunk more, that is.
constexpr std::uint64_t kQuestionBytes = kChunkBytes;
constexpr std::size_t kQuestionRanges = 4096;

Result<Holder> holder_of(const Version& store, const std::map<Version, Holder>& holders) {
  const auto at = holders.find(store);
  if (at == holders.end()) return fail(Code::not_found, format("nobody has bytes of version {}", store.number));
  return at->second;
}

}  // namespace

struct ShardImage::Read {
  Holder holder;
  std::unique_ptr<ShardSource::Pending> pending;
  std::optional<ShardSource::Bytes> answer;
};

ShardImage::ShardImage(ShardSource& source, std::uint32_t ranks, std::vector<ImageChunk> chunks)
    : source_(&source), ranks_(ranks), chunks_(std::move(chunks)) {}

/// From the first that overlaps the range to behind the last.
std::pair<std::size_t, std::size_t> ShardImage::chunks_in(const Range& range) const {
  const auto first = std::ranges::upper_bound(chunks_, range.offset, {},
                                              [](const ImageChunk& chunk) { return chunk.begin + chunk.bytes; });
  const auto end = std::ranges::lower_bound(chunks_, range.offset + range.bytes, {}, &ImageChunk::begin);
  const auto from = static_cast<std::size_t>(first - chunks_.begin());
  return {from, std::max(from, static_cast<std::size_t>(end - chunks_.begin()))};
}

void ShardImage::begin(std::uint64_t offset, std::uint64_t bytes) {
  begun_.push_back({offset, bytes});
  const auto [from, to] = chunks_in(begun_.back());
  // Chunks that stand in turn with several holders are asked of each at once.
  struct Open {
    std::shared_ptr<Read> read;
    std::vector<ByteRange> ranges;
    std::uint64_t bytes = 0;
  };
  std::map<Holder, Open> open;
  const auto ask = [&](Open& one) {
    if (one.read != nullptr) one.read->pending = source_->read(one.read->holder, ranks_, std::move(one.ranges));
    one = Open();
  };
  for (std::size_t i = from; i < to; ++i) {
    if (asked_.contains(i)) continue;
    const ImageChunk& chunk = chunks_[i];
    Open& one = open[chunk.holder];
    if (one.bytes + chunk.bytes > 2 * kQuestionBytes || one.ranges.size() >= kQuestionRanges) ask(one);
    if (one.read == nullptr) {
      one.read = std::make_shared<Read>();
      one.read->holder = chunk.holder;
    }
    asked_[i] = {one.read, one.bytes};
    one.bytes += chunk.bytes;
    if (!one.ranges.empty() && one.ranges.back().offset + one.ranges.back().bytes == chunk.offset) {
      one.ranges.back().bytes += chunk.bytes;
    } else {
      one.ranges.push_back({chunk.offset, chunk.bytes});
    }
  }
  for (auto& [holder, one] : open) ask(one);
}

Result<Bytes> ShardImage::bytes_of(std::size_t i, std::vector<BadShard>& bad) {
  const ImageChunk& chunk = chunks_[i];
  const Asked& asked = asked_.at(i);
  Read& read = *asked.read;
  if (!read.answer) {
    read.answer = read.pending->wait();
    read.pending.reset();
  }
  const auto refuse_holder = [&](const std::string& why) {
    const Holder& holder = read.holder;
    bad.push_back(
        {holder, format("version {}, {} of rank {} at rank {}: {}", holder.version.number,
                        holder.kind == ShardKind::parity ? "parity" : "shard", holder.shard_rank, holder.holder, why)});
    return fail(Code::corrupt, bad.back().why);
  };
  if (!*read.answer) {
    // Who does not answer is not damaged.
    const Code code = read.answer->error().code();
    if (code == Code::cancelled || code == Code::timed_out || code == Code::unavailable) {
      return fail(read.answer->error());
    }
    return refuse_holder(read.answer->error().message());
  }
  const Bytes all = (*read.answer)->bytes();
  if (asked.at > all.size() || chunk.bytes > all.size() - asked.at) return refuse_holder("it answered with too little");
  const Bytes bytes = all.subspan(asked.at, chunk.bytes);
  if (digest_of(bytes) != chunk.digest) return refuse_holder("its bytes are not what was written");
  return bytes;
}

Status ShardImage::take(MutableBytes out, std::vector<BadShard>& bad) {
  FRESHET_CHECK(!begun_.empty() && begun_.front().bytes == out.size());
  const Range range = begun_.front();
  begun_.pop_front();
  const auto [from, to] = chunks_in(range);
  std::uint64_t filled = range.offset;
  const std::uint64_t end = range.offset + range.bytes;
  for (std::size_t i = from; i < to; ++i) {
    FRESHET_ASSIGN(const Bytes bytes, bytes_of(i, bad));
    const std::uint64_t begin = std::max(range.offset, chunks_[i].begin);
    const std::uint64_t stop = std::min(end, chunks_[i].begin + bytes.size());
    std::memset(out.data() + (filled - range.offset), 0, begin - filled);
    std::memcpy(out.data() + (begin - range.offset), bytes.data() + (begin - chunks_[i].begin), stop - begin);
    filled = stop;
  }
  std::memset(out.data() + (filled - range.offset), 0, end - filled);
  // The next range may begin in the chunk in which this one ended.
  std::erase_if(asked_, [&](const auto& entry) {
    const std::size_t chunk = entry.first;
    if (chunk + 1 == to) return false;
    return std::ranges::none_of(begun_, [&](const Range& next) {
      const auto [first, last] = chunks_in(next);
      return chunk >= first && chunk < last;
    });
  });
  return {};
}

Result<std::vector<ImageChunk>> image_of_shard(const ShardHeader& header, std::span<const StoredPiece> pieces,
                                               const std::map<Version, Holder>& holders) {
  std::vector<ImageChunk> chunks;
  const std::vector<std::uint64_t> offsets = memory_offsets(pieces);
  std::size_t digest = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    FRESHET_ASSIGN(const Holder holder, holder_of(header.versions[header.records[i].store], holders));
    const std::uint64_t bytes = pieces[i].piece.bytes();
    for (std::uint64_t at = 0; at < bytes; at += kChunkBytes) {
      // What stands in memory has it where the image has it.
      chunks.push_back({.begin = offsets[i] + at,
                        .bytes = std::min(kChunkBytes, bytes - at),
                        .holder = holder,
                        .offset = (holder.in_memory ? offsets[i] : header.records[i].offset) + at,
                        .digest = header.digests[digest++]});
    }
  }
  return chunks;
}

Result<std::vector<ImageChunk>> image_of_parity(const ShardHeader& header, std::span<const Digest> digests,
                                                const std::map<Version, Holder>& holders) {
  FRESHET_CHECK(header.parity && digests.size() == header.records.size());
  std::vector<ImageChunk> chunks;
  for (std::uint64_t block = 0; block < digests.size(); ++block) {
    const PieceRecord& record = header.records[block];
    FRESHET_ASSIGN(const Holder holder, holder_of(header.versions[record.store], holders));
    chunks.push_back({.begin = header.parity->block_offset(block),
                      .bytes = header.parity->block_bytes(block),
                      .holder = holder,
                      .offset = record.offset,
                      .digest = digests[block]});
  }
  return chunks;
}

}  // namespace freshet::levels
