// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A snapshot has a log's state at one position. It is a head, whose name is the position, and parts, which are written
/// before the head. Each attempt to write a snapshot names its parts anew, so no reader meets a mixture of two
/// attempts. Values in objects stand in it by their places only.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "repo/log/log_state.h"

namespace freshet::log {

inline constexpr std::size_t kSnapshotHeadBytesMax = std::size_t{1} << 20;
inline constexpr std::size_t kSnapshotPartBytesMax = std::size_t{32} << 20;
inline constexpr std::size_t kSnapshotPartsMax = 4096;
inline constexpr std::uint64_t kSnapshotBytesMax = std::uint64_t{2} << 30;  ///< Of all its parts.

struct SnapshotHead {
  struct Part {
    Digest digest;
    std::uint64_t bytes = 0;
  };
  std::uint64_t position = 0;
  LogId writer;
  std::uint64_t attempt = 0;
  LogMember owner;
  std::uint64_t owned_since = 0;
  std::uint64_t emptied_through = 0;
  std::uint64_t previous = 0;  ///< The position of the snapshot before it; 0: none is known.
  std::vector<Part> parts;
};

struct Snapshot {
  SnapshotHead head;
  std::vector<std::string> parts;
};

/// A part is a little larger than `part_bytes` at most. out_of_space: too many parts, or bytes. REQUIRES: the state has
/// an owner, and no challenge is unanswered. Only the simulator leaves the tokens out.
Result<Snapshot> make_snapshot(const LogState& state, const LogId& writer, std::uint64_t attempt,
                               std::size_t part_bytes, bool with_tokens = true);

std::string encode(const SnapshotHead& head);
/// corrupt, unsupported.
Result<SnapshotHead> decode_snapshot_head(std::string_view bytes, std::uint64_t position);
/// corrupt: not the parts that the head lists.
Result<LogState> load_snapshot(const SnapshotHead& head, const std::vector<std::string>& parts);

}  // namespace freshet::log
