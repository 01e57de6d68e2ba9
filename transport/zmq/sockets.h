// SPDX-License-Identifier: Apache-2.0
#pragma once

/// ZeroMQ sockets as the shells use them: never blocking, with limits on everything, and with errors as values (cppzmq
/// throws; nothing of that leaves these functions). A message that does not fit into a full pipe is dropped: every
/// protocol above repeats itself.
///
/// Two rules keep libzmq (4.3.4) alive whatever a peer does:
///   - No socket limits the messages that wait to be received (RCVHWM). Past such a limit libzmq stops reading; a
///     connection that breaks while it is stopped stays half-dead, and the next thing to be written there, a heartbeat
///     or the answer to a peer's own PING, fails an assertion. What a peer may send ahead is bounded in bytes, by
///     Listener.
///   - No socket has ZMTP's heartbeats. The protocols above have their own, which also notice a stopped process.

#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "transport/security/credentials.h"
#include "transport/security/socket_owner.h"
#include "transport/zmq/address.h"
#include "transport/zmq/monitor.h"

namespace freshet {

class Listener;

/// Each belongs to one loop thread. Movable, but not assignable: see SocketMonitor.
struct ZmqSocket {
  zmq::socket_t socket;
  SocketAddress address;
  /// Of a listening tcp socket (for Listener) and of a connecting one (for take_outcome(), and for receive() below: who
  /// receives from a connecting socket in another way asks its admits() about each message).
  std::optional<SocketMonitor> monitor;
  std::optional<ParentsAddress> listens;  ///< Children of this process let go of it.
};

inline constexpr int kZmqSocketsMax = 64;

/// A context with one I/O thread, or unavailable.
Result<zmq::context_t> make_zmq_context(int sockets_max = kZmqSocketsMax);

/// Bound at `address`; the result's address has the port that was given for "*". With credentials, only clients that
/// know the public key and are admitted by the context's Authenticator get in. Without credentials, a connecting socket
/// believes those `believed` alone.
Result<ZmqSocket> bind_router(zmq::context_t& context, SocketAddress address,
                              const ServerCredentials* credentials = nullptr);
/// Listens once more at the same address, a socket file that somebody removed. Who is connected stays so.
Status bind_again(ZmqSocket& socket);
Result<ZmqSocket> connect_dealer(zmq::context_t& context, SocketAddress address,
                                 const ClientCredentials* credentials = nullptr,
                                 Neighbours believed = Neighbours::same_user);

/// For bulk data.
struct DataLimits {
  std::size_t message_bytes_max = 0;  ///< Of one part. What else may come is for a Listener to bound.
  int sent_max = 0;                   ///< Messages that wait to be sent to one peer; 0: as many as there are.
};
/// A ROUTER whose sends fail for a peer that is gone, and a DEALER that does not connect again.
Result<ZmqSocket> bind_data(zmq::context_t& context, SocketAddress address, const ServerCredentials* credentials,
                            const DataLimits& limits);
Result<ZmqSocket> connect_data(zmq::context_t& context, SocketAddress address, const ClientCredentials* credentials,
                               const DataLimits& limits, Neighbours believed = Neighbours::same_user);

/// Of a socket, for poll and epoll. It tells of a change once: who uses the socket in any way looks afterwards whether
/// there is more.
int descriptor_of(void* socket);

/// All parts of the next message, or nothing when there is none. At most `parts_max` are kept; a longer one comes as
/// empty. `listener`, if any, is the socket's: it is told what was taken.
std::optional<std::vector<zmq::message_t>> receive(zmq::socket_t& socket, std::size_t parts_max,
                                                   Listener* listener = nullptr);
/// Of a connecting socket: a message of a peer that is not believed comes as empty, too.
std::optional<std::vector<zmq::message_t>> receive(ZmqSocket& socket, std::size_t parts_max);

/// Sends `head` (when not empty) and `body` as one message. False when it was dropped.
bool send(zmq::socket_t& socket, const std::string& head, Bytes body);

/// Waits until one of `items` is ready or `at_most` has passed. False for a broken context.
bool poll(std::vector<zmq::pollitem_t>& items, std::chrono::milliseconds at_most);

inline Bytes bytes_of(const zmq::message_t& message) {
  return Bytes(static_cast<const std::byte*>(message.data()), message.size());
}

}  // namespace freshet
