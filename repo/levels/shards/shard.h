// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A shard: all pieces that one rank stores of one version. repo/levels/FORMAT.md has the file's bytes and the order of
/// its durable steps. The file does not list its pieces. The cut (core/layout/layout.h) computes them from the
/// version's tensors, the number of ranks and the rank.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/layout/layout.h"
#include "core/model/ids.h"
#include "core/model/tensor.h"
#include "repo/levels/terms/terms.h"

namespace freshet::levels {

/// Each chunk has its own digest. So a rank that needs a part of a piece proves the chunks that it takes.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10;
/// What one question asks for at most.
inline constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
/// Each block of a row of parity has its own digest.
inline constexpr std::uint64_t kParityBlockBytes = std::uint64_t{1} << 20;
/// The alignment of pieces in memory and in a file.
inline constexpr std::uint64_t kPieceAlignment = 64;
inline constexpr std::uint64_t kShardHeaderBytesMax = std::uint64_t{256} << 20;

/// The shard of rank `rank` of `ranks`, of one version.
struct ShardKey {
  Version version;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  auto operator<=>(const ShardKey&) const = default;
};
/// "net@7, rank 2 of 4"
std::string to_string(const std::string& model, const ShardKey& key);

/// A version's tensors, immutable and shared; identified by the digest of its encoded form.
struct TensorTable {
  std::vector<LaidTensor> tensors;
  std::vector<std::byte> encoded;
  Digest digest;

  static std::shared_ptr<const TensorTable> of(std::vector<LaidTensor> tensors);
  /// corrupt: the bytes do not match the digest, or are no table.
  static Result<std::shared_ptr<const TensorTable>> decode(Bytes encoded, const Digest& digest);
};

/// The purpose of a shard at its rank. All but the last are files.
enum class ShardKind : std::uint8_t {
  own = 0,     ///< The rank's own share of a version.
  copy = 1,    ///< A copy of another rank's share, for the loss of that rank's host.
  parity = 2,  ///< Parity: other ranks' shares can be computed from it.
  /// A version in the repository, as the shard of a job of one rank (external_level.h). Its head has no digests, since
  /// the repository proves what it reads.
  stored = 3,
};

struct PieceRecord {
  std::uint32_t writer = 0;  ///< Index into ShardHeader::versions: the version that last changed the piece.
  std::uint32_t store = 0;   ///< Index into ShardHeader::versions: this version's shard of this rank has the bytes,
  std::uint64_t offset = 0;  ///< at this offset of its payload.
  auto operator<=>(const PieceRecord&) const = default;
};

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

/// Where so many bytes from `offset` on are to lie.
struct PlacedRange {
  std::uint64_t offset = 0;
  MutableBytes out;
};

/// The shares that a parity shard has parity of (terms/stripes.h). Its pieces are blocks of its rows, one row after
/// another.
struct ParityOf {
  std::vector<std::uint32_t> members;         ///< The group's ranks, ascending.
  std::uint32_t losses = 1;                   ///< The number of ranks that may be lost.
  std::vector<std::uint64_t> parts;           ///< Bytes of a row's parts, one for each region (parity/group_image.h).
  std::vector<std::vector<std::byte>> heads;  ///< Of the `losses` members before this rank, nearest first.

  std::uint64_t row_bytes() const;
  std::uint64_t block_count() const;  ///< Of all rows.
  /// All blocks of all rows, and where they are among the rows: kParityBlockBytes of a part, the last of a part may be
  /// shorter.
  std::vector<ByteRange> blocks() const;
  std::uint32_t position_of(std::uint32_t rank) const;  ///< REQUIRES: the rank is a member.
};

struct ShardHeader {
  std::string model;
  ShardKey key;
  std::uint64_t step = 0;
  std::int64_t created_unix_ns = 0;
  std::string host;
  Digest tensors;
  std::vector<Version> versions;     ///< The versions that the records name; no two equal.
  std::vector<PieceRecord> records;  ///< One for each piece of the cut.
  std::vector<Digest> digests;       ///< One for each chunk of each piece, in order.
  std::uint64_t payload_bytes = 0;
  /// For a parity shard: the records describe its blocks. `digests` is empty: the digests stand at the end of the
  /// payload (parity/parity_maker.h).
  std::optional<ParityOf> parity;

  /// The other shards of this rank that have bytes of this shard.
  std::vector<Version> needs() const;
};

/// The index of each piece's first chunk among all digests; one entry more than there are pieces.
std::vector<std::uint64_t> first_chunks(std::span<const StoredPiece> pieces);
std::uint64_t aligned_to_piece(std::uint64_t bytes);
/// Where the pieces of a share stand in the memory of its rank; at the end, the bytes of all.
std::vector<std::uint64_t> memory_offsets(std::span<const StoredPiece> pieces);

/// What a rank stores, whatever the version: constant for one cut.
struct ShareCut {
  ShareCut(std::shared_ptr<const TensorTable> tensors, std::uint32_t ranks, std::uint32_t rank);

  std::shared_ptr<const TensorTable> table;
  std::uint32_t ranks = 1;
  std::uint32_t rank = 0;
  std::vector<StoredPiece> pieces;
  std::vector<std::uint64_t> offsets;       ///< In memory; one more than pieces.
  std::vector<std::uint64_t> first_chunks;  ///< One more than pieces.
  std::uint64_t bytes = 0;                  ///< Of the pieces.
};

/// Calls `half`, if there is one, once: when half of the bytes are done. A test may end the rank there.
class AtHalf {
 public:
  AtHalf(std::uint64_t all, std::function<void()> half) : all_(all), half_(std::move(half)) {}
  void reached(std::uint64_t done) {
    if (half_ && done * 2 >= all_) std::exchange(half_, {})();
  }

 private:
  const std::uint64_t all_;
  std::function<void()> half_;
};

/// A shard file up to its payload.
std::vector<std::byte> encode_shard_head(const ShardHeader& header);
inline constexpr std::size_t kShardPrefixBytes = 64;
/// The length of the head, from its first kShardPrefixBytes. corrupt: they begin no head.
Result<std::uint64_t> shard_head_bytes(Bytes prefix);
/// Decodes a whole head. corrupt: encode_shard_head() does not make these bytes.
Result<ShardHeader> decode_shard_head(Bytes head);
/// Checks that a version of `ranks` ranks can have these tensors: each of their bytes is then in exactly one shard.
/// corrupt otherwise.
Status check_table(const TensorTable& table, std::uint32_t ranks);
/// Checks that the records, the digests of a file and the length of the payload fit the cut of these tensors. corrupt
/// otherwise.
Status check_records(const ShardHeader& header, std::span<const StoredPiece> pieces, ShardKind kind = ShardKind::own);
/// Notes the last version that changed each tensor, as far as this shard's records tell: the latest of those that
/// changed a piece of it.
void add_writers(const ShardHeader& header, std::span<const StoredPiece> pieces,
                 std::vector<std::optional<Version>>& writers);

}  // namespace freshet::levels
