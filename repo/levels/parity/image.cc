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

constexpr std::size_t kQuestionRanges = 4096;

/// The chunks of an image and whom to ask, as they are found.
class ImageMaker {
 public:
  explicit ImageMaker(const std::map<Version, Holder>& holders) {
    for (const auto& [version, holder] : holders) {
      indices_.emplace(version, static_cast<std::uint32_t>(image_.holders.size()));
      image_.holders.push_back(holder);
    }
  }
  Result<std::uint32_t> holder_of(const Version& store) const {
    const auto at = indices_.find(store);
    if (at == indices_.end()) return fail(Code::not_found, format("nobody has bytes of version {}", store.number));
    return at->second;
  }
  const Holder& holder(std::uint32_t index) const { return image_.holders[index]; }
  void add(const ImageChunk& chunk) { image_.chunks.push_back(chunk); }
  ImageChunks finish() {
    std::ranges::sort(image_.chunks, {}, &ImageChunk::begin);
    return std::move(image_);
  }

 private:
  std::map<Version, std::uint32_t> indices_;
  ImageChunks image_;
};

}  // namespace

struct ShardImage::Read {
  Holder holder;
  std::unique_ptr<ShardSource::Pending> pending;
  std::optional<ShardSource::Bytes> answer;
};

ShardImage::ShardImage(ShardSource& source, std::uint32_t ranks, ImageChunks image)
    : source_(&source), ranks_(ranks), image_(std::move(image)) {}

/// With the chunks from the first that overlaps the range to behind the last.
ShardImage::Range ShardImage::range_of(std::uint64_t offset, std::uint64_t bytes) const {
  const auto begin = std::ranges::upper_bound(image_.chunks, offset, {},
                                              [](const ImageChunk& chunk) { return chunk.begin + chunk.bytes; });
  const auto end = std::ranges::lower_bound(image_.chunks, offset + bytes, {}, &ImageChunk::begin);
  const auto first = static_cast<std::size_t>(begin - image_.chunks.begin());
  const auto last = static_cast<std::size_t>(end - image_.chunks.begin());
  return {.offset = offset, .bytes = bytes, .first = first, .last = std::max(first, last)};
}

std::uint64_t ShardImage::begin(std::uint64_t offset, std::uint64_t bytes) {
  std::uint64_t asked_bytes = 0;
  begun_.push_back(range_of(offset, bytes));
  // Chunks that stand in turn with several holders are asked of each at once.
  struct Open {
    std::shared_ptr<Read> read;
    std::vector<ByteRange> ranges;
    std::uint64_t bytes = 0;
  };
  std::map<std::uint32_t, Open> open;
  const auto ask = [&](Open& one) {
    if (one.read != nullptr) one.read->pending = source_->read(one.read->holder, ranks_, std::move(one.ranges));
    one = Open();
  };
  for (std::size_t i = begun_.back().first; i < begun_.back().last; ++i) {
    if (asked_.contains(i)) continue;
    const ImageChunk& chunk = image_.chunks[i];
    const Holder& holder = image_.holders[chunk.holder];
    Open& one = open[chunk.holder];
    if (one.bytes + chunk.bytes > 2 * kReadBytes || one.ranges.size() >= kQuestionRanges) ask(one);
    if (one.read == nullptr) {
      one.read = std::make_shared<Read>();
      one.read->holder = holder;
    }
    asked_[i] = {one.read, one.bytes};
    one.bytes += chunk.bytes;
    asked_bytes += chunk.bytes;
    if (!one.ranges.empty() && one.ranges.back().offset + one.ranges.back().bytes == chunk.offset) {
      one.ranges.back().bytes += chunk.bytes;
    } else {
      one.ranges.push_back({.offset = chunk.offset, .bytes = chunk.bytes});
    }
  }
  for (auto& [holder, one] : open) ask(one);
  return asked_bytes;
}

Result<Bytes> ShardImage::bytes_of(std::size_t i, std::vector<BadShard>& bad) {
  const ImageChunk& chunk = image_.chunks[i];
  const Asked& asked = asked_.at(i);
  Read& read = *asked.read;
  if (!read.answer) {
    read.answer = read.pending->wait();
    read.pending.reset();
  }
  const auto refuse_holder = [&](const std::string& why) {
    bad.push_back(bad_at(read.holder, why));
    return fail(Code::corrupt, bad.back().why);
  };
  if (!*read.answer) {
    if (is_no_damage(read.answer->error())) return fail(read.answer->error());
    return refuse_holder(read.answer->error().message());
  }
  const Bytes all = (*read.answer)->bytes();
  if (asked.at > all.size() || chunk.bytes > all.size() - asked.at) return refuse_holder("it answered with too little");
  const Bytes bytes = all.subspan(asked.at, chunk.bytes);
  if (digest_of(bytes) != chunk.digest) return refuse_holder("its bytes are not what was written");
  return bytes;
}

Status ShardImage::take(MutableBytes out, std::vector<BadShard>& bad, bool clears) {
  FRESHET_CHECK(!begun_.empty() && begun_.front().bytes == out.size());
  const Range range = begun_.front();
  begun_.pop_front();
  std::uint64_t filled = range.offset;
  const std::uint64_t end = range.offset + range.bytes;
  for (std::size_t i = range.first; i < range.last; ++i) {
    FRESHET_ASSIGN(const Bytes bytes, bytes_of(i, bad));
    const std::uint64_t begin = std::max(range.offset, image_.chunks[i].begin);
    const std::uint64_t stop = std::min(end, image_.chunks[i].begin + bytes.size());
    if (clears) std::memset(out.data() + (filled - range.offset), 0, begin - filled);
    std::memcpy(out.data() + (begin - range.offset), bytes.data() + (begin - image_.chunks[i].begin), stop - begin);
    filled = stop;
  }
  if (clears) std::memset(out.data() + (filled - range.offset), 0, end - filled);
  // The next range may begin in the chunk in which this one ended.
  std::erase_if(asked_, [&](const auto& entry) {
    const std::size_t chunk = entry.first;
    if (chunk + 1 == range.last) return false;
    return std::ranges::none_of(begun_, [&](const Range& next) { return chunk >= next.first && chunk < next.last; });
  });
  return {};
}

Result<ImageChunks> image_of_shard(const ShardHeader& header, std::span<const StoredPiece> pieces,
                                   std::span<const std::uint64_t> offsets, const std::map<Version, Holder>& holders) {
  ImageMaker image(holders);
  const std::vector<std::uint64_t> in_memory = memory_offsets(pieces);
  std::size_t digest = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    FRESHET_ASSIGN(const std::uint32_t holder, image.holder_of(header.versions[header.records[i].store]));
    const std::uint64_t stored = image.holder(holder).in_memory ? in_memory[i] : header.records[i].offset;
    const std::uint64_t bytes = pieces[i].piece.bytes();
    for (std::uint64_t at = 0; at < bytes; at += kChunkBytes) {
      image.add({.begin = offsets[i] + at,
                 .offset = stored + at,
                 .bytes = static_cast<std::uint32_t>(std::min(kChunkBytes, bytes - at)),
                 .holder = holder,
                 .digest = header.digests[digest++]});
    }
  }
  return image.finish();
}

Result<ImageChunks> image_of_payload(const ShardHeader& newer, std::span<const StoredPiece> pieces,
                                     const Holder& holder, std::uint64_t payload_bytes) {
  const std::map<Version, Holder> only = {{holder.version, holder}};
  ImageMaker image(only);
  std::size_t digest = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool is_here = newer.versions[newer.records[i].store] == holder.version;
    const std::uint64_t bytes = pieces[i].piece.bytes();
    for (std::uint64_t at = 0; at < bytes; at += kChunkBytes, ++digest) {
      const std::uint64_t offset = newer.records[i].offset + at;
      const auto count = static_cast<std::uint32_t>(std::min(kChunkBytes, bytes - at));
      if (is_here) image.add({.begin = offset, .offset = offset, .bytes = count, .digest = newer.digests[digest]});
    }
  }
  ImageChunks made = image.finish();
  std::uint64_t end = 0;
  for (const ImageChunk& chunk : made.chunks) {
    if (chunk.begin < end || chunk.begin + chunk.bytes > payload_bytes) {
      return fail(Code::corrupt, format("version {}: the shard of rank {} cannot have these records",
                                        holder.version.number, holder.shard_rank));
    }
    end = chunk.begin + chunk.bytes;
  }
  return made;
}

Result<ImageChunks> image_of_parity(const ShardHeader& header, std::span<const Digest> digests,
                                    const std::map<Version, Holder>& holders) {
  FRESHET_CHECK(header.parity && digests.size() == header.records.size());
  ImageMaker image(holders);
  const std::vector<ByteRange> blocks = header.parity->blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const PieceRecord& record = header.records[i];
    FRESHET_ASSIGN(const std::uint32_t holder, image.holder_of(header.versions[record.store]));
    image.add({.begin = blocks[i].offset,
               .offset = record.offset,
               .bytes = static_cast<std::uint32_t>(blocks[i].bytes),
               .holder = holder,
               .digest = digests[i]});
  }
  return image.finish();
}

}  // namespace freshet::levels
