// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kConnectionsMax = 4096;
/// Of the descriptors that the process may have; a publisher has two listeners.
constexpr std::size_t kShareOfDescriptors = 4;
/// A key that is alone leaves so much for another one to come in.
constexpr std::size_t kShareForOthers = 8;

std::string reason_of(const SocketMonitor::Event& event) {
  if (event.kind == ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL) return "went away in the middle of the handshake";
  if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
    return "uses no keys where they are needed, or the reverse";
  if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) return "expects another public key of this publisher";
  return format("does not shake hands as ZeroMQ does (0x{:x})", event.value);
}

}  // namespace

Listener::Listener(ZmqSocket& socket, Neighbours neighbours, ArrivalLimits limits,
                   std::function<void(int descriptor)> on_end)
    : socket_(socket), neighbours_(neighbours), on_end_(std::move(on_end)), arrivals_(limits) {}

void Listener::watch(std::vector<zmq::pollitem_t>& items) {
  items.push_back({socket_.monitor->handle(), 0, ZMQ_POLLIN, 0});
  if (arrivals_.descriptor() >= 0) items.push_back({nullptr, arrivals_.descriptor(), ZMQ_POLLIN, 0});
}

std::size_t Listener::connections_max() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return kConnectionsMax / kShareOfDescriptors;
  return std::clamp<std::size_t>(files.rlim_cur / kShareOfDescriptors, 16, kConnectionsMax);
}

std::size_t Listener::key_connections_max(std::size_t connections_max, bool is_alone) {
  return is_alone ? connections_max - connections_max / kShareForOthers : (connections_max + 1) / 2;
}

Listener::Peer Listener::peer_of(int descriptor) {
  Peer peer{.bytes = sizeof(sockaddr_storage)};
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer.address), &peer.bytes) != 0) peer.bytes = 0;
  return peer;
}

std::string Listener::name_of(const Peer& peer) {
  std::array<char, NI_MAXHOST> host;
  std::array<char, NI_MAXSERV> port;
  if (peer.bytes == 0 || ::getnameinfo(reinterpret_cast<const sockaddr*>(&peer.address), peer.bytes, host.data(),
                                       host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "somebody";
  }
  return format("{} (port {})", host.data(), port.data());
}

void Listener::tend(Time now) {
  while (const auto event = socket_.monitor->take()) take(*event, now);
  fresh_.clear();
  for (const auto& [descriptor, bytes] : taken_) arrivals_.took(descriptor, bytes);
  taken_.clear();
  for (const Arrivals::Excess& excess : arrivals_.look()) {
    rejects_.count(format("{} is disconnected: {} of its bytes are not a whole message, or are over the limit",
                          name_of(excess.connection), excess.bytes),
                   now);
    put_out(excess.connection);
  }
}

void Listener::take(const SocketMonitor::Event& event, Time now) {
  const int descriptor = static_cast<int>(event.value);
  switch (event.kind) {
    case ZMQ_EVENT_ACCEPTED: take_in(descriptor, now); break;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      // The one I/O thread reports the end of the same connection next.
      failure_ = reason_of(event);
      break;
    case ZMQ_EVENT_DISCONNECTED: {
      const std::string who = name_of(descriptor);
      if (!failure_.empty()) rejects_.count(format("{} {}", who, failure_), now);
      failure_.clear();
      const auto at = peers_.find(descriptor);
      if (fresh_.contains(descriptor) || (at != peers_.end() && !at->second.admitted)) suspects_.insert(descriptor);
      peers_.erase(descriptor);
      arrivals_.remove(descriptor);
      if (on_end_) on_end_(descriptor);
      break;
    }
    default: break;
  }
}

void Listener::take_in(int descriptor, Time now) {
  Peer peer = peer_of(descriptor);
  fresh_.insert(descriptor);
  const Status admitted = check(descriptor);
  peer.admitted = admitted.has_value();
  peers_[descriptor] = peer;
  arrivals_.add(descriptor);
  if (admitted) return;
  rejects_.count(format("{}: {} is disconnected", admitted.error().message(), name_of(peer)), now);
  put_out(descriptor);
}

Status Listener::check(int descriptor) const {
  const std::string& here = socket_.address.text();
  if (peers_.size() - peers_.count(descriptor) >= connections_max_) {
    return fail(Code::out_of_space, format("{} connections at {}", peers_.size(), here));
  }
  if (neighbours_ == Neighbours::all) return {};
  Status same = check_same_user(descriptor);
  if (!same) return fail(std::move(same).error().with_context(format("a connection to {}", here)));
  return {};
}

bool Listener::admits(int descriptor) {
  if (neighbours_ == Neighbours::all) return true;
  const auto at = peers_.find(descriptor);
  if (at != peers_.end() && at->second.admitted && !suspects_.contains(descriptor)) return true;
  put_out(descriptor);
  return false;
}

void Listener::put_out(int descriptor) {
  const auto at = peers_.find(descriptor);
  if (at == peers_.end() || at->second.bytes == 0) return;
  // ZeroMQ reads the end of the connection and closes it. It may have closed it by itself by now, and the descriptor be
  // another file's, so only a connection that is still the same peer's is ended.
  const Peer again = peer_of(descriptor);
  const Peer& peer = at->second;
  if (again.bytes == peer.bytes && std::memcmp(&again.address, &peer.address, peer.bytes) == 0) {
    ::shutdown(descriptor, SHUT_RDWR);
  }
}

void Listener::note_key(int descriptor, std::string_view key) {
  const auto at = peers_.find(descriptor);
  if (at == peers_.end() || key.empty() || at->second.key == key) return;
  at->second.key = key;
  const auto has_key = [&](const auto& peer) { return peer.second.key == key; };
  const auto of_key = static_cast<std::size_t>(std::ranges::count_if(peers_, has_key));
  const auto has_other = [&](const auto& peer) { return !peer.second.key.empty() && peer.second.key != key; };
  const bool is_alone = std::ranges::none_of(peers_, has_other);
  const std::size_t most = key_connections_max(connections_max_, is_alone);
  if (of_key <= most) return;
  rejects_.count(
      format("{} is disconnected: {} connections at {} have its key, and one key may have {}{}: give clients keys of "
             "their own, or raise the limit of open files (ulimit -n)",
             name_of(at->second), of_key, socket_.address.text(), most, is_alone ? "" : " while others are connected"),
      system_clock().now());
  put_out(descriptor);
}

void Listener::tend(Time now, const Authenticator* keys) {
  tend(now);
  if (keys == nullptr) return;
  const std::uint64_t changes = keys->changes();
  if (std::exchange(list_changes_, changes) == changes) return;
  for (const auto& [descriptor, peer] : peers_) {
    if (!peer.key.empty() && !keys->allows(peer.key)) put_out(descriptor);
  }
}

std::string Listener::name_of(int descriptor) const {
  const auto at = peers_.find(descriptor);
  return at == peers_.end() ? "somebody" : name_of(at->second);
}

bool is_admitted(const zmq::message_t& message, const Authenticator* keys, Listener* listener) {
  const int descriptor = listener == nullptr ? -1 : sender_descriptor(message);
  if (listener != nullptr) listener->tend(system_clock().now());
  if (keys == nullptr) return listener == nullptr || listener->admits(descriptor);
  const bool admitted = keys->allows(sender_key(message));
  if (listener != nullptr) {
    listener->note_key(descriptor, sender_key(message));
    if (!admitted) listener->put_out(descriptor);
  }
  return admitted;
}

}  // namespace freshet
