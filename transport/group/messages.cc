// SPDX-License-Identifier: Apache-2.0
#include "transport/group/messages.h"

#include <algorithm>

#include "core/base/format.h"
#include "transport/group/group_generated.h"

namespace freshet::group {
namespace {

constexpr std::uint16_t kProtocol = 2;
constexpr std::size_t kTablesMax = 1 << 14;

tl::unexpected<Error> bad_group_message(std::string_view what) {
  return fail(Code::corrupt, format("a message between ranks: {}", what));
}

std::string text_of(const flatbuffers::String* text) { return text == nullptr ? std::string() : text->str(); }

/// Of all claims and peers. encode() stores each text once. A hostile message can point to one long text many times.
std::uint64_t text_bytes(const wire::Message& message) {
  std::uint64_t bytes = 0;
  if (message.claims() != nullptr) {
    for (const wire::Claim* claim : *message.claims())
      bytes += std::uint64_t{claim->key()->size()} + claim->value()->size();
  }
  if (message.peers() != nullptr) {
    for (const wire::Peer* peer : *message.peers()) {
      bytes += std::uint64_t{peer->address()->size()} + peer->key()->size() + peer->host()->size();
    }
  }
  return bytes;
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  flatbuffers::FlatBufferBuilder builder(message.data.size() + 256);
  std::vector<flatbuffers::Offset<wire::Claim>> claims;
  for (const auto& [key, value] : message.claims) {
    const auto key_text = builder.CreateString(key);
    claims.push_back(wire::CreateClaim(builder, key_text, builder.CreateString(value)));
  }
  std::vector<flatbuffers::Offset<wire::Peer>> peers;
  for (const Peer& peer : message.peers) {
    const auto address = builder.CreateString(peer.address);
    const auto key = builder.CreateString(peer.key);
    peers.push_back(wire::CreatePeer(builder, address, key, builder.CreateString(peer.host)));
  }
  const auto text = message.text.empty() ? 0 : builder.CreateString(message.text);
  const auto claim_list = claims.empty() ? 0 : builder.CreateVector(claims);
  const auto peer_list = peers.empty() ? 0 : builder.CreateVector(peers);
  const auto rank_list = message.ranks.empty() ? 0 : builder.CreateVector(message.ranks);
  const auto data =
      message.data.empty()
          ? 0
          : builder.CreateVector(reinterpret_cast<const std::uint8_t*>(message.data.data()), message.data.size());
  wire::FinishMessageBuffer(
      builder, wire::CreateMessage(builder, kProtocol, static_cast<wire::Kind>(message.kind), message.from,
                                   message.number, message.code, text, claim_list, peer_list, rank_list, data));
  const auto* bytes = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {bytes, bytes + builder.GetSize()};
}

Result<Message> decode(Bytes bytes) {
  if (bytes.size() > kMessageBytesMax) return bad_group_message("it is too long");
  if (bytes.size() < 16) return bad_group_message("it is too short");
  std::vector<std::uint64_t> aligned;
  const std::byte* start = bytes.data();
  if (reinterpret_cast<std::uintptr_t>(start) % alignof(std::uint64_t) != 0) {
    aligned.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(aligned.data()));
    start = reinterpret_cast<const std::byte*>(aligned.data());
  }
  const auto* data = reinterpret_cast<const std::uint8_t*>(start);
  flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/8, kTablesMax);
  if (!wire::VerifyMessageBuffer(verifier)) return bad_group_message("it is not whole");
  const wire::Message& from = *wire::GetMessage(data);
  if (from.protocol() != kProtocol) return bad_group_message("the peer runs another version of Freshet");
  if (from.kind() > wire::Kind::MAX) return bad_group_message("it is of no known kind");
  if (from.code() > static_cast<std::uint8_t>(Code::io_error) + 1) return bad_group_message("it has no known error");
  if (text_bytes(from) > bytes.size()) return bad_group_message("its texts are longer than the message");
  Message message{.kind = static_cast<Kind>(from.kind()),
                  .from = from.from(),
                  .number = from.number(),
                  .code = from.code(),
                  .text = text_of(from.text())};
  if (from.claims() != nullptr) {
    for (const wire::Claim* claim : *from.claims()) {
      message.claims.emplace_back(claim->key()->str(), claim->value()->str());
    }
  }
  if (from.peers() != nullptr) {
    for (const wire::Peer* peer : *from.peers()) {
      message.peers.push_back({peer->address()->str(), peer->key()->str(), peer->host()->str()});
    }
  }
  if (from.ranks() != nullptr) message.ranks.assign(from.ranks()->begin(), from.ranks()->end());
  if (from.data() != nullptr) {
    const auto* first = reinterpret_cast<const std::byte*>(from.data()->data());
    message.data.assign(first, first + from.data()->size());
  }
  return message;
}

Error error_in(const Message& message) {
  return Error(static_cast<Code>(message.code == 0 ? 0 : message.code - 1), message.text);
}

void put_error(Message& message, const Error& error) {
  message.code = static_cast<std::uint8_t>(static_cast<std::uint8_t>(error.code()) + 1);
  message.text = error.message();
}

}  // namespace freshet::group
