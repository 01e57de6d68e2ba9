// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A hub's control socket: what comes by it and may be heard, and what is sent, within what each peer may ask for and
/// has room for. Messages that are malformed are counted and dropped; so are those of a client that was taken off the
/// allow-list. The hub's thread.

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/protocol/publisher/actions.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/hub/peer_budgets.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/send_budget.h"
#include "transport/zmq/sockets.h"

namespace freshet {

class ControlSocket {
 public:
  using Encoded = std::shared_ptr<const std::vector<std::byte>>;

  static Result<std::unique_ptr<ControlSocket>> open(SocketAddress address,
                                                     const std::optional<ServerCredentials>& credentials,
                                                     Neighbours neighbours);
  /// As it was bound. Any thread.
  const SocketAddress& address() const { return socket_.address; }

  void watch(std::vector<zmq::pollitem_t>& items);
  /// In each round, before take().
  void tend(Time now);
  /// Listens again where somebody removed its file: true.
  Result<bool> tend_file();
  /// Calls `hear` with what came, which may be more than once a round takes.
  void take(
      const std::function<void(const protocol::Peer& peer, protocol::Message message, std::string_view key)>& hear);
  /// Whether the allow-list still has the key of something that came before; true without keys.
  bool admits(std::string_view key) const;
  /// Whether a peer of that key may make another version current. Without keys whoever can connect is this user, or one
  /// of this host's; so is who comes by a file of this user's own.
  Status may_activate(std::string_view key) const;

  /// Dropped when the peer does not read, or is gone: it will ask again, or not.
  void send(const protocol::Peer& peer, const protocol::Message& message);
  void send(const protocol::Peer& peer, const Encoded& encoded);
  /// False, and counted, when the peer has asked for more bytes than it may.
  bool may_answer(const protocol::Peer& peer);
  /// Counts something that is not as it should be.
  void reject(std::string_view why);

 private:
  ControlSocket(zmq::context_t context, std::unique_ptr<Authenticator> authenticator, ZmqSocket socket,
                Neighbours neighbours);
  /// Ends its connection, where that is known and not this user's own socket file.
  void put_out(const protocol::Peer& peer, std::string_view why);

  // Sockets end before the authenticator does, and that before the context.
  zmq::context_t context_;
  const std::unique_ptr<Authenticator> authenticator_;  ///< Null without keys.
  ZmqSocket socket_;
  std::unique_ptr<Listener> listener_;  ///< Of a socket that is tcp.
  SendBudget sends_;
  PeerBudgets budgets_{{}};
  Rejects rejects_{"control socket"};
};

}  // namespace freshet
