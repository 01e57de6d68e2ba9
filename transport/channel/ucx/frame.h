// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The active messages between a client and a server over UCX: their ids, their limits, and how headers are read.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/model/tensor.h"
#include "transport/channel/fetch_generated.h"
#include "transport/channel/skeleton/reception.h"
#include "transport/channel/ucx/frame_generated.h"

namespace freshet::channel::ucx {

/// Part of the protocol. A worker dispatches by it.
enum class MessageId : unsigned {
  fetch = 1,
  cancel = 2,
  ping = 3,
  welcome = 8,
  chunk = 9,
  batch = 10,
  ended = 11,
  pong = 12,
};

/// "FUX" and the protocol's version.
inline constexpr std::uint64_t kMagic = 0x46'55'58'0000000002;

inline constexpr std::size_t kHeaderBytesMax = 64;
inline constexpr std::uint64_t kChunkBytesMin =
    16 << 10;  ///< So that a batch, no longer than a chunk, takes any small answer.
inline constexpr std::uint64_t kChunkBytesMax = 64 << 20;
/// Answers up to this size travel together.
inline constexpr std::uint64_t kSmallAnswerBytes = 16 << 10;
inline constexpr std::uint64_t kBatchBytes = 256 << 10;
inline constexpr std::uint64_t kBatchBytesMax = kBatchBytes + kBatchAnswersMax * sizeof(channel::wire::Answer);

template <typename Header>
std::optional<Header> read_header(Bytes bytes) {
  static_assert(sizeof(Header) <= kHeaderBytesMax);
  if (bytes.size() != sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

}  // namespace freshet::channel::ucx
