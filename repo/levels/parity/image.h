// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A rank's share, or its rows of parity, as one run of bytes that is read in order from whoever has them. Each chunk
/// is proved against its digest before a byte of it counts.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/shards/assembly.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {

/// One chunk of an image, and where its bytes are.
struct ImageChunk {
  std::uint64_t begin = 0;  ///< Of the image; ascending.
  std::uint64_t bytes = 0;
  Holder holder;
  std::uint64_t offset = 0;  ///< In the payload that the holder has.
  Digest digest;
};

/// One thread at a time.
class ShardImage {
 public:
  /// What no chunk has is zeros. `ranks`: of the version.
  ShardImage(ShardSource& source, std::uint32_t ranks, std::vector<ImageChunk> chunks);

  /// Asks for the bytes, of which some may have been asked for already.
  void begin(std::uint64_t offset, std::uint64_t bytes);
  /// The bytes of the begin() that is the oldest not yet taken. REQUIRES: there is one, and `out` is as long as it.
  /// corrupt: `bad` says whose bytes are not what was written.
  Status take(MutableBytes out, std::vector<BadShard>& bad);

 private:
  struct Read;
  struct Asked {
    std::shared_ptr<Read> read;
    std::uint64_t at = 0;  ///< In its answer.
  };
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::pair<std::size_t, std::size_t> chunks_in(const Range& range) const;
  Result<Bytes> bytes_of(std::size_t chunk, std::vector<BadShard>& bad);

  ShardSource* source_;
  std::uint32_t ranks_;
  std::vector<ImageChunk> chunks_;
  std::deque<Range> begun_;
  std::map<std::size_t, Asked> asked_;  ///< By chunk: under way, or still wanted.
};

/// A share: the shard's pieces as they lie in memory (memory_offsets()). `holders`: whom to ask, by the version that
/// stores them; none has chunks left out by the caller's choice. REQUIRES: check_records() of the header.
Result<std::vector<ImageChunk>> image_of_shard(const ShardHeader& header, std::span<const StoredPiece> pieces,
                                               const std::map<Version, Holder>& holders);
/// Rows of parity. `digests`: of the header's blocks.
Result<std::vector<ImageChunk>> image_of_parity(const ShardHeader& header, std::span<const Digest> digests,
                                                const std::map<Version, Holder>& holders);

}  // namespace freshet::levels
