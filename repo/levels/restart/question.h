// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A question of one rank to another: for heads and bytes of shards, and of versions in the repository, which rank 0
/// opened; and to bring its part of a version there.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/levels/shards/shard.h"
#include "repo/levels/shards/shard_folders.h"

namespace freshet::levels {

struct Question {
  enum class Kind : std::uint8_t {
    head = 0,   ///< Of the shard `key`.
    read = 1,   ///< Bytes of its payload.
    table = 2,  ///< The list of tensors of that digest.
    bring = 3,  ///< No bytes: bring the version to the repository (rank/sender.h).
  };
  Kind kind = Kind::head;
  ShardKey key;
  bool in_memory = false;
  Digest table;
  std::vector<ByteRange> ranges;
  ShardKind of = ShardKind::own;       ///< Of the shard that is asked for; never another than that.
  std::string token;                   ///< To bring: of the put by parts,
  std::vector<std::uint32_t> tensors;  ///< and what of the version's tensors, ascending.
};
inline constexpr std::size_t kRangesMax = std::size_t{1} << 15;

std::vector<std::byte> encode(const Question& question);
Result<Question> decode_question(Bytes bytes);

}  // namespace freshet::levels
