// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A shard: what one rank stores of one version. FORMAT.md beside this has the file's bytes and the order of its
/// durable steps. Which bytes of which tensors it is made of is not written down: the cut (core/layout/layout.h) tells,
/// from the version's tensors, the number of ranks and the rank.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/ids.h"
#include "core/layout/layout.h"
#include "core/result.h"
#include "core/tensor.h"

namespace freshet::levels {

/// Each has a digest of its own, so that a rank that needs a part of a piece proves what it takes.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;
/// Where pieces begin in memory and in a file.
inline constexpr std::uint64_t kPieceAlignment = 64;
inline constexpr std::uint64_t kShardHeaderBytesMax = std::uint64_t{256} << 20;

struct Version {
  VersionId id;
  VersionNumber number = 0;
  auto operator<=>(const Version&) const = default;
};

/// One version's shard of one rank of so many.
struct ShardKey {
  Version version;
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  auto operator<=>(const ShardKey&) const = default;
};
/// "net@7, rank 2 of 4"
std::string to_string(const std::string& model, const ShardKey& key);

/// A version's tensors, immutable and shared; known by the digest of its encoded form.
struct TensorTable {
  std::vector<LaidTensor> tensors;
  std::vector<std::byte> encoded;
  Digest digest;

  static std::shared_ptr<const TensorTable> of(std::vector<LaidTensor> tensors);
  /// corrupt when the bytes are not those of that digest, or no table.
  static Result<std::shared_ptr<const TensorTable>> decode(Bytes encoded, const Digest& digest);
};

/// What a shard file is to its rank.
enum class ShardKind : std::uint8_t {
  own = 0,     ///< What it stores of a version.
  copy = 1,    ///< What another rank stores of it, for the end of that rank's host.
  parity = 2,  ///< What others' shares can be computed from.
};

struct PieceRecord {
  std::uint32_t writer = 0;  ///< Into ShardHeader::versions: who last changed it.
  std::uint32_t store = 0;  ///< Into ShardHeader::versions: whose shard, of this rank and as many ranks, has its bytes,
  std::uint64_t offset = 0;  ///< and where among its payload.
  auto operator<=>(const PieceRecord&) const = default;
};

/// Whose shares a parity shard stands for (parity/stripes.h). Its pieces are blocks of its rows, one row after another.
struct ParityOf {
  std::vector<std::uint32_t> members;  ///< The group's ranks, ascending.
  std::uint32_t losses = 1;            ///< So many of them may be lost.
  std::uint64_t row_bytes = 0;
  std::vector<std::vector<std::byte>> heads;  ///< Of the `losses` members before this rank, nearest first.

  std::uint64_t blocks() const;                           ///< Of all rows.
  std::uint64_t block_bytes(std::uint64_t block) const;   ///< kChunkBytes, but for a row's last.
  std::uint64_t block_offset(std::uint64_t block) const;  ///< Among the rows.
  std::uint32_t position_of(std::uint32_t rank) const;    ///< REQUIRES: it is a member.
};

struct ShardHeader {
  std::string model;
  ShardKey key;
  std::uint64_t step = 0;
  std::int64_t created_unix_ns = 0;
  std::string host;
  Digest tensors;
  std::vector<Version> versions;     ///< Those that the records name; no two equal.
  std::vector<PieceRecord> records;  ///< One for each piece of the cut.
  std::vector<Digest> digests;       ///< One for each chunk of each piece, in order.
  std::uint64_t payload_bytes = 0;
  /// Of a parity shard: the records are of its blocks, and `digests` is empty: they end the payload (parity/rows.h).
  std::optional<ParityOf> parity;

  /// The shards, of this rank, that have bytes of this one; without itself.
  std::vector<Version> needs() const;
};

/// Where the chunks of each piece begin among all digests; one entry more than there are pieces.
std::vector<std::uint64_t> first_chunks(std::span<const StoredPiece> pieces);
std::uint64_t aligned_to_piece(std::uint64_t bytes);

/// A shard file up to its payload.
std::vector<std::byte> encode_shard_head(const ShardHeader& header);
inline constexpr std::size_t kShardPrefixBytes = 64;
/// From the first kShardPrefixBytes: how many bytes the head has. corrupt when it is none.
Result<std::uint64_t> shard_head_bytes(Bytes prefix);
/// Of a whole head. corrupt for what encode_shard_head() does not make.
Result<ShardHeader> decode_shard_head(Bytes head);
/// That a version of so many ranks can have these tensors: each byte of them is then in exactly one shard. corrupt
/// otherwise.
Status check_table(const TensorTable& table, std::uint32_t ranks);
/// That the records fit the cut of these tensors. corrupt otherwise.
Status check_records(const ShardHeader& header, std::span<const StoredPiece> pieces);

}  // namespace freshet::levels
