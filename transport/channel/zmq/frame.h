// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Messages of the zmq channel: their kinds, their limits, what they cost, and how their heads are read.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "core/model/tensor.h"
#include "transport/channel/channel.h"
#include "transport/channel/skeleton/reception.h"
#include "transport/channel/zmq/frame_generated.h"

namespace freshet::channel::zmq_channel {

using zmq_wire::Frame;

/// Part of the protocol.
enum class Kind : std::uint32_t {
  hello = 1,  ///< The client's first: `total` is its window.
  fetch = 2,  ///< A fetch request follows.
  cancel = 3,
  credit = 4,  ///< `total` bytes of messages were taken.
  ping = 5,
  chunk = 9,   ///< `detail` is the encoding; bytes of the answer from `offset` follow.
  batch = 10,  ///< `detail` answers follow, each an Answer and its bytes.
  ended = 11,  ///< The request has failed, or was cancelled: `detail` is the code, a text follows.
  pong = 12,

  // Of the channel nccl alone (channel/nccl). `request` is a round's number.
  took = 6,       ///< The client has `total` transfers of it.
  left = 7,       ///< The client left it, with `total` transfers; a text says why, if it was not told to.
  round = 13,     ///< Join it as rank `piece` of `detail`; its id follows.
  transfer = 14,  ///< The next of it, of `total` bytes: where `detail` parts of it belong follows, a Carried each.
  leave = 15,     ///< It is over.
};

/// "FZC" and the protocol's version.
inline constexpr std::uint32_t kMagic = 0x46'5a'43'01;

inline constexpr std::uint64_t kChunkBytesMin = 4 << 10;
inline constexpr std::uint64_t kChunkBytesMax = 1 << 20;
inline constexpr std::uint64_t kWindowBytesMin = 64 << 10;
inline constexpr std::uint64_t kWindowBytesMax = 256 << 20;
/// Answers up to this size travel together.
inline constexpr std::uint64_t kSmallAnswerBytes = 32 << 10;
inline constexpr std::size_t kToServerBytesMax = sizeof(Frame) + kPiecesMax * 64 + 1024;
inline constexpr std::size_t kToClientBytesMax = sizeof(Frame) + kChunkBytesMax;

/// What a message to a client takes of its window: small ones have a cost too.
inline std::uint64_t cost_of(std::size_t message_bytes) { return std::max<std::uint64_t>(message_bytes, 4096); }

/// Nothing unless `message` begins with a whole head of this protocol.
inline std::optional<Frame> read_frame(Bytes message) {
  if (message.size() < sizeof(Frame)) return std::nullopt;
  Frame frame;
  std::memcpy(static_cast<void*>(&frame), message.data(), sizeof frame);
  if (frame.magic() != kMagic) return std::nullopt;
  return frame;
}

inline Frame frame_of(Kind kind, std::uint64_t request = 0, std::uint64_t total = 0, std::uint64_t offset = 0,
                      std::uint32_t piece = 0, std::uint32_t detail = 0) {
  return Frame(kMagic, static_cast<std::uint32_t>(kind), request, total, offset, piece, detail);
}

inline Frame frame_of(std::uint64_t request, const Chunk& chunk) {
  return frame_of(Kind::chunk, request, chunk.total, chunk.offset, chunk.piece, chunk.encoding);
}

}  // namespace freshet::channel::zmq_channel
