// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The messages between the ranks of one job, as values. WIRE.md beside this tells the story.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::group {

using Rank = std::uint32_t;

/// The claims that ranks agree upon before they begin: "ranks" and "4", "model" and "net", a digest of the tensors.
using Claims = std::vector<std::pair<std::string, std::string>>;

/// The claim that has the job's name: where it differs, two jobs met.
inline constexpr std::string_view kJobClaim = "job";

/// How others reach a rank.
struct Peer {
  std::string address;  ///< Of its socket; "tcp://10.0.0.7:41233".
  std::string key;      ///< Its public key as text; empty without keys.
  std::string host;     ///< Its failure domain.
  bool operator==(const Peer&) const = default;
};

enum class Kind : std::uint8_t {
  hello = 0,         ///< To rank 0: I am `from`, with these claims; `peers` has one entry, mine.
  met = 1,           ///< From rank 0: all are here; `peers` has everybody.
  refused = 2,       ///< From rank 0: `code` and `text` say why.
  ping = 3,          ///< Both ways.
  contribution = 4,  ///< To rank 0: `data` for agreement `number`.
  decision = 5,      ///< From rank 0: what was decided, `data`; or an error, `code` and `text`.
  lost = 6,          ///< From rank 0: `ranks` are lost, and with them the meeting.
  note = 7,          ///< `data`, for the layer above.
  ask = 8,           ///< To any rank: `data` is a question, `number` its name.
  answer = 9,        ///< To who asked: bytes follow in a part of their own; or an error.
};

struct Message {
  Kind kind = Kind::ping;
  Rank from = 0;
  std::uint64_t number = 0;
  std::uint8_t code = 0;  ///< 0: no error; otherwise one more than a freshet::Code.
  std::string text;
  Claims claims;
  std::vector<Peer> peers;
  std::vector<Rank> ranks;
  std::vector<std::byte> data;
  bool operator==(const Message&) const = default;
};

inline constexpr std::size_t kMessageBytesMax = std::size_t{64} << 20;
inline constexpr std::size_t kAnswerBytesMax = std::size_t{4} << 20;

std::vector<std::byte> encode(const Message& message);
/// corrupt for anything that encode() does not make.
Result<Message> decode(Bytes bytes);

/// The error in a message that has one (`code` is not 0).
Error error_in(const Message& message);
void put_error(Message& message, const Error& error);

}  // namespace freshet::group
