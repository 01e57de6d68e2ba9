#pragma once

/// ZeroMQ sockets as the shells use them: never blocking, with limits on everything, and with errors as values (cppzmq
/// throws; nothing of that leaves these functions). A message that does not fit into a full pipe is dropped: every
/// protocol above repeats itself.

#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/fork_guard.h"
#include "core/result.h"
#include "core/tensor.h"
#include "transport/security/credentials.h"
#include "transport/zmq/address.h"
#include "transport/zmq/monitor.h"

namespace freshet {

/// Each belongs to one loop thread. Movable, but not assignable: see SocketMonitor.
struct ZmqSocket {
  zmq::socket_t socket;
  SocketAddress address;
  /// Of a listening tcp socket (for Listener) and of a connecting one (for take_outcome()).
  std::optional<SocketMonitor> monitor;
  std::optional<ParentsAddress> listens;  ///< Children of this process let go of it.
};

/// A context with one I/O thread, or unavailable.
Result<zmq::context_t> make_zmq_context();

/// Bound at `address`; the result's address has the port that was given for "*". With credentials, only clients that
/// know the public key and are admitted by the context's Authenticator get in.
Result<ZmqSocket> bind_router(zmq::context_t& context, SocketAddress address,
                              const ServerCredentials* credentials = nullptr);
/// An XPUB socket: it hears of every subscription, a byte 1 and the topic, so that whoever comes late can be told the
/// news that went by while it came.
Result<ZmqSocket> bind_announcements(zmq::context_t& context, SocketAddress address,
                                     const ServerCredentials* credentials = nullptr);
Result<ZmqSocket> connect_dealer(zmq::context_t& context, SocketAddress address,
                                 const ClientCredentials* credentials = nullptr);
/// Takes the announcements of `topic` and of topics that start with it: the receiver compares.
Result<ZmqSocket> connect_announcements(zmq::context_t& context, SocketAddress address, const std::string& topic,
                                        const ClientCredentials* credentials = nullptr);

/// For bulk data: what may come, since what goes is bounded by who sends it.
struct DataLimits {
  std::size_t message_bytes_max = 0;
  int received_max = 0;  ///< Messages of one peer that wait to be read.
  int sent_max = 0;      ///< That wait to be sent to one peer; 0: as many as there are.
};
/// A ROUTER whose sends fail for a peer that is gone, and a DEALER that does not connect again. They do not ping: a
/// slow line may need longer for one message than a ping may take.
Result<ZmqSocket> bind_data(zmq::context_t& context, SocketAddress address, const ServerCredentials* credentials,
                            const DataLimits& limits);
Result<ZmqSocket> connect_data(zmq::context_t& context, SocketAddress address, const ClientCredentials* credentials,
                               const DataLimits& limits);

/// Of a socket, for poll and epoll. It tells of a change once: who uses the socket in any way looks afterwards whether
/// there is more.
int descriptor_of(void* socket);

/// All parts of the next message, or nothing when there is none. At most `parts_max` are kept; a longer one comes as
/// empty.
std::optional<std::vector<zmq::message_t>> receive(zmq::socket_t& socket, std::size_t parts_max);

/// Sends `head` (when not empty) and `body` as one message. False when it was dropped.
bool send(zmq::socket_t& socket, const std::string& head, Bytes body);

/// Waits until one of `items` is ready or `at_most` has passed. False for a broken context.
bool poll(std::vector<zmq::pollitem_t>& items, std::chrono::milliseconds at_most);

inline Bytes bytes_of(const zmq::message_t& message) {
  return Bytes(static_cast<const std::byte*>(message.data()), message.size());
}

}  // namespace freshet
