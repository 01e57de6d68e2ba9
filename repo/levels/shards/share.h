// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A rank's share of a version in memory, while it is captured and until it rests elsewhere.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/layout/layout.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {

/// Memory that was touched. Fixed in size; whole pages of its own, as a GPU's driver registers them.
class ShareMemory {
 public:
  static Result<ShareMemory> allocate(std::uint64_t bytes);
  std::byte* data() const { return memory_.get(); }
  std::uint64_t bytes() const { return memory_.get_deleter().bytes; }  ///< What was asked for, and a little more.

 private:
  struct Unmap {
    std::uint64_t bytes = 0;
    void operator()(std::byte* memory) const;
  };
  ShareMemory(std::byte* memory, std::uint64_t bytes) : memory_(memory, Unmap{bytes}) {}
  std::unique_ptr<std::byte, Unmap> memory_;
};

struct Share {
  explicit Share(ShareMemory pages) : memory(std::move(pages)) {}

  ShareMemory memory;
  Version version;
  std::uint64_t step = 0;
  std::vector<Digest> digests;
  std::vector<Version> writers;  ///< Of each piece.
  int users = 0;                 ///< Guarded by the checkpointer; 0: it may be written.
};

/// The digests and writers of the pieces that the next version is compared with, by piece.
struct Baseline {
  std::vector<Digest> digests;  ///< By chunk.
  std::vector<Version> writers;
  std::vector<bool> known;
};

/// Copies one piece in and digests its chunks. `from` is as long as the piece.
void capture_piece(const ShareCut& cut, Share& share, std::size_t piece, Bytes from);
/// The same of one chunk of the piece. Two threads may do it at once for two chunks.
void capture_chunk(const ShareCut& cut, Share& share, std::size_t piece, std::uint64_t chunk, Bytes from);
std::uint64_t chunks_of(const ShareCut& cut, std::size_t piece);
/// Only its chunks' digests, of bytes elsewhere.
void digest_piece(const ShareCut& cut, std::size_t piece, Bytes from, std::vector<Digest>& digests);
/// Whether all chunks of a piece are equal.
bool is_equal_piece(const ShareCut& cut, std::size_t piece, const std::vector<Digest>& a, const std::vector<Digest>& b);

/// The shard of which this share has everything, for who reads it from memory.
ShardHeader header_of(const ShareCut& cut, const Share& share, const std::string& model, const std::string& host);

}  // namespace freshet::levels
