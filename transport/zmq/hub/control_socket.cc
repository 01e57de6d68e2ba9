// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/hub/control_socket.h"

#include <filesystem>
#include <utility>

#include "core/base/format.h"

namespace freshet {
namespace {

/// Taken in one go, so that a flood on one source does not starve the others.
constexpr int kHubMessagesPerRound = 256;
/// What waits for those who do not read.
constexpr SendBudget::Limits kSends{.peer_bytes = std::uint64_t{8} << 20, .all_bytes = std::uint64_t{64} << 20};

}  // namespace

Result<std::unique_ptr<ControlSocket>> ControlSocket::open(SocketAddress address,
                                                           const std::optional<ServerCredentials>& credentials,
                                                           Neighbours neighbours) {
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  std::unique_ptr<Authenticator> authenticator;
  if (credentials) {
    FRESHET_ASSIGN(authenticator, Authenticator::open(context, credentials->allow_file));
  }
  FRESHET_ASSIGN(ZmqSocket socket, bind_router(context, std::move(address), credentials ? &*credentials : nullptr));
  return std::unique_ptr<ControlSocket>(
      new ControlSocket(std::move(context), std::move(authenticator), std::move(socket), neighbours));
}

ControlSocket::ControlSocket(zmq::context_t context, std::unique_ptr<Authenticator> authenticator, ZmqSocket socket,
                             Neighbours neighbours)
    : context_(std::move(context)),
      authenticator_(std::move(authenticator)),
      socket_(std::move(socket)),
      sends_(kSends) {
  if (socket_.monitor) listener_ = std::make_unique<Listener>(socket_, neighbours);
}

void ControlSocket::watch(std::vector<zmq::pollitem_t>& items) {
  items.push_back({.socket = socket_.socket.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
  if (listener_) listener_->watch(items);
}

void ControlSocket::tend(Time now) {
  if (listener_) listener_->tend(now, authenticator_.get());
}

Result<bool> ControlSocket::tend_file() {
  const std::string ipc = "ipc://";
  std::error_code failure;
  if (address().is_tcp() || std::filesystem::exists(address().text().substr(ipc.size()), failure) || failure) {
    return false;
  }
  FRESHET_TRY(bind_again(socket_));
  return true;
}

void ControlSocket::take(
    const std::function<void(const protocol::Peer& peer, protocol::Message message, std::string_view key)>& hear) {
  for (int i = 0; i < kHubMessagesPerRound; ++i) {
    auto parts = receive(socket_.socket, 2, listener_.get());
    if (!parts) {
      if (listener_) listener_->on_drained();
      return;
    }
    if (parts->size() != 2) {
      reject("a message is not in two parts");
      continue;
    }
    const protocol::Peer peer = (*parts)[0].to_string();
    const int connection = listener_ != nullptr ? sender_descriptor((*parts)[1]) : -1;
    const PeerBudgets::Verdict verdict = budgets_.on_message(peer, connection, system_clock().now());
    if (verdict == PeerBudgets::Verdict::put_out) put_out(peer, "sends messages without end");
    if (verdict != PeerBudgets::Verdict::take) continue;
    if (!is_admitted((*parts)[1], authenticator_.get(), listener_.get())) {
      if (authenticator_ == nullptr) continue;  // Another user of this host; the listener has told.
      reject(format("a client's key is not on the allow-list any more: {}", sender_key((*parts)[1])));
      continue;
    }
    auto message = protocol::decode(bytes_of((*parts)[1]));
    if (!message) {
      reject(message.error().message());
      continue;
    }
    hear(peer, std::move(*message), sender_key((*parts)[1]));
  }
}

bool ControlSocket::admits(std::string_view key) const {
  return authenticator_ == nullptr || authenticator_->allows(key);
}

Status ControlSocket::may_activate(std::string_view key) const {
  if (authenticator_ == nullptr || !address().is_tcp()) return {};
  return authenticator_->may_activate(key);
}

void ControlSocket::send(const protocol::Peer& peer, const protocol::Message& message) {
  if (std::holds_alternative<protocol::Grant>(message) && !may_answer(peer)) return;
  const auto encoded = std::make_shared<const std::vector<std::byte>>(protocol::encode(message));
  budgets_.on_answer(peer, encoded->size());
  send(peer, encoded);
}

void ControlSocket::send(const protocol::Peer& peer, const Encoded& encoded) {
  switch (sends_.send(socket_.socket, peer, encoded, *encoded)) {
    case SendBudget::Sent::no_room: return put_out(peer, "does not read its answers");
    case SendBudget::Sent::crowded: return put_out(sends_.largest(), "does not read its answers");
    default: return;
  }
}

bool ControlSocket::may_answer(const protocol::Peer& peer) {
  const bool may = budgets_.may_answer(peer);
  if (!may) reject("a client asks for more bytes than it may");
  return may;
}

void ControlSocket::reject(std::string_view why) { rejects_.count(why, system_clock().now()); }

void ControlSocket::put_out(const protocol::Peer& peer, std::string_view why) {
  const int connection = budgets_.connection_of(peer);
  if (listener_ == nullptr || connection < 0) return reject(format("a client {}", why));
  listener_->tend(system_clock().now());
  reject(format("{} is disconnected: it {}", listener_->name_of(connection), why));
  listener_->put_out(connection);
}

}  // namespace freshet
