// SPDX-License-Identifier: Apache-2.0
#include "transport/group/ways.h"

namespace freshet::group {
namespace {

constexpr std::chrono::milliseconds kReconnectPause{50};

}  // namespace

Ways::Way* Ways::to(Rank rank, const std::vector<Peer>& peers) {
  if (const auto at = ways_.find(rank); at != ways_.end()) return &at->second;
  const std::string address = rank == 0 ? options_.meet : rank < peers.size() ? peers[rank].address : "";
  std::optional<ClientCredentials> proof;
  if (options_.keys) {
    std::optional<PublicKey> server = rank == 0 ? options_.hub_key : std::nullopt;
    if (rank != 0 && rank < peers.size()) {
      if (auto key = PublicKey::parse("a rank's key", peers[rank].key)) server = *std::move(key);
    }
    if (!server) return nullptr;
    proof = ClientCredentials{.keys = *options_.keys, .server = *server};
  }
  auto parsed = SocketAddress::parse(address, false, proof ? Reach::any_host : Reach::this_host);
  if (!parsed) return nullptr;
  auto opened = connect_data(context_, *std::move(parsed), proof ? &*proof : nullptr,
                             {.message_bytes_max = kMessageBytesMax}, options_.neighbours);
  if (!opened) return nullptr;
  return &ways_.try_emplace(rank, *std::move(opened), parties_of(address, proof ? &*proof : nullptr)).first->second;
}

Ways::Way* Ways::to_hub(const std::vector<Peer>& peers, Time now) {
  return !ways_.contains(0) && now < connect_after_ ? nullptr : to(0, peers);
}

void Ways::close(Rank rank, Time now) {
  ways_.erase(rank);
  connect_after_ = now + kReconnectPause;
}

}  // namespace freshet::group
