// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A rank's share, or its rows of parity, as one run of bytes that is read in order from whoever has them. Each chunk
/// is proved against its digest before a byte of it counts.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {

/// One chunk of an image, and where its bytes are. There are many.
struct ImageChunk {
  std::uint64_t begin = 0;   ///< Of the image.
  std::uint64_t offset = 0;  ///< In the payload that the holder has.
  std::uint32_t bytes = 0;
  std::uint32_t holder = 0;  ///< Index into ImageChunks::holders.
  Digest digest;
};
struct ImageChunks {
  std::vector<ImageChunk> chunks;  ///< Ascending.
  std::vector<Holder> holders;
};

/// One thread at a time.
class ShardImage {
 public:
  /// What no chunk has is zeros. `ranks`: of the version.
  ShardImage(ShardSource& source, std::uint32_t ranks, ImageChunks image);

  /// Asks for the bytes, of which some may have been asked for already. Returns how many are asked for now.
  std::uint64_t begin(std::uint64_t offset, std::uint64_t bytes);
  /// The bytes of the begin() that is the oldest not yet taken. REQUIRES: there is one, and `out` is as long as it.
  /// Without `clears`, what no chunk has stays as it is in `out`. corrupt: `bad` says whose bytes are not what was
  /// written.
  Status take(MutableBytes out, std::vector<BadShard>& bad, bool clears = true);

 private:
  struct Read;
  struct Asked {
    std::shared_ptr<Read> read;
    std::uint64_t at = 0;  ///< In its answer.
  };
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::size_t first = 0;  ///< Of its chunks.
    std::size_t last = 0;   ///< Behind them.
  };
  Range range_of(std::uint64_t offset, std::uint64_t bytes) const;
  Result<Bytes> bytes_of(std::size_t chunk, std::vector<BadShard>& bad);

  ShardSource* source_;
  std::uint32_t ranks_;
  ImageChunks image_;
  std::deque<Range> begun_;
  std::map<std::size_t, Asked> asked_;  ///< By chunk: under way, or still wanted.
};

/// A share: the shard's pieces, each at its offset in the image (GroupImage::offsets()). `holders`: whom to ask, by the
/// version that stores them. REQUIRES: check_records() of the header.
Result<ImageChunks> image_of_shard(const ShardHeader& header, std::span<const StoredPiece> pieces,
                                   std::span<const std::uint64_t> offsets, const std::map<Version, Holder>& holders);
/// The payload of `holder`'s shard, of so many bytes, as far as this newer shard of the same rank needs it. corrupt: it
/// cannot have these records. REQUIRES: as above.
Result<ImageChunks> image_of_payload(const ShardHeader& newer, std::span<const StoredPiece> pieces,
                                     const Holder& holder, std::uint64_t payload_bytes);
/// Rows of parity. `digests`: of the header's blocks.
Result<ImageChunks> image_of_parity(const ShardHeader& header, std::span<const Digest> digests,
                                    const std::map<Version, Holder>& holders);

}  // namespace freshet::levels
