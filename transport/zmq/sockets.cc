// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/sockets.h"

#include <cstring>
#include <string_view>

#include "core/base/format.h"
#include "transport/protocol/messages.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/listener.h"

namespace freshet {
namespace {

/// Messages waiting to be sent to one peer. A subscriber asks for one version at a time, so an honest pipe is nearly
/// empty.
constexpr int kPipeMessagesMax = 64;
constexpr int kReconnectMs = 20;
constexpr int kReconnectMsMax = 500;

/// A stranger that connects and says nothing is put out.
constexpr int kHandshakeMsMax = 3000;
/// The kernel's own care for connections whose other end vanished: 13 s when nothing is on its way, else 15.
constexpr int kKeepAliveIdleSeconds = 10;
constexpr int kKeepAliveProbes = 3;
constexpr int kUnacknowledgedMsMax = 15'000;
constexpr int kBacklog = 256;
/// What CURVE adds to a message (a command's name, a nonce, a proof), where ZeroMQ's limit counts it.
constexpr std::int64_t kCurveBytes = 64;
/// What a part of a message takes on the wire beside its bytes, at most: its length and flags, and what CURVE adds.
constexpr std::uint64_t kPartBytes = 9 + 33;
constexpr std::string_view kEveryInterface = "tcp://*:";
/// Not empty, so that the Authenticator is asked.
constexpr const char* kDomain = "freshet";
/// Not ZMQ_EVENT_ACCEPT_FAILED: where descriptors run out there are millions of those a minute.
constexpr int kListenerEvents = ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                                ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;

void prove_as(zmq::socket_t& socket, const ServerCredentials& credentials) {
  socket.set(zmq::sockopt::zap_domain, kDomain);
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, credentials.keys.secret_text());
}

void prove_as(zmq::socket_t& socket, const ClientCredentials& credentials) {
  socket.set(zmq::sockopt::curve_serverkey, credentials.server.text().c_str());
  socket.set(zmq::sockopt::curve_publickey, credentials.keys.public_key().text().c_str());
  socket.set(zmq::sockopt::curve_secretkey, credentials.keys.secret_text());
}

template <typename Credentials>
void limit_messages(zmq::socket_t& socket, std::size_t bytes_max, const Credentials* credentials) {
  socket.set(zmq::sockopt::maxmsgsize,
             static_cast<std::int64_t>(bytes_max) + (credentials != nullptr ? kCurveBytes : 0));
}

/// What a network needs and a Unix socket does not: there the kernel tells who is gone.
void set_up_tcp(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, kKeepAliveIdleSeconds);
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 1);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, kKeepAliveProbes);
  socket.set(zmq::sockopt::tcp_maxrt, kUnacknowledgedMsMax);
}

/// Runs `set_up` on a new socket and turns what it throws into an error. `events` are watched, none for 0.
template <typename Credentials, typename SetUp>
Result<ZmqSocket> make_socket(zmq::context_t& context, zmq::socket_type type, SocketAddress address,
                              std::string_view verb, const Credentials* credentials, int events, Neighbours believed,
                              SetUp set_up) {
  try {
    zmq::socket_t socket(context, type);
    socket.set(zmq::sockopt::linger, 0);
    // ZeroMQ falls back to IPv4 where the host has no IPv6.
    socket.set(zmq::sockopt::ipv6, address.is_ipv6() || address.text().starts_with(kEveryInterface));
    socket.set(zmq::sockopt::handshake_ivl, kHandshakeMsMax);
    socket.set(zmq::sockopt::heartbeat_ivl, 0);
    socket.set(zmq::sockopt::rcvhwm, 0);
    if (address.is_tcp()) set_up_tcp(socket);
    if (credentials != nullptr) prove_as(socket, *credentials);
    std::optional<SocketMonitor> monitor;
    if (events != 0) {
      FRESHET_ASSIGN(SocketMonitor opened, SocketMonitor::open(context, socket, events, believed));
      monitor.emplace(std::move(opened));
    }
    set_up(socket);
    return ZmqSocket{
        .socket = std::move(socket), .address = std::move(address), .monitor = std::move(monitor), .listens = {}};
  } catch (const zmq::error_t& error) {
    const Code code = error.num() == EADDRINUSE ? Code::already_exists : Code::unavailable;
    return fail(code, format("{} {}: {}", verb, address.text(), error.what()));
  }
}

template <typename SetUp>
Result<ZmqSocket> make_listener(zmq::context_t& context, zmq::socket_type type, SocketAddress address,
                                const ServerCredentials* credentials, SetUp set_up) {
  const std::string endpoint = address.endpoint();
  const int events = address.is_tcp() ? kListenerEvents : 0;
  Result<ZmqSocket> bound = make_socket(context, type, std::move(address), "bind", credentials, events, Neighbours::all,
                                        [&](zmq::socket_t& socket) {
                                          socket.set(zmq::sockopt::backlog, kBacklog);
                                          set_up(socket);
                                          socket.bind(endpoint);
                                        });
  if (!bound) return bound;
  if (!bound->address.is_tcp()) {
    bound->listens.emplace(ParentsAddress::of(endpoint));
    return bound;
  }
  // Where it is bound, for an address that left the port to the system.
  try {
    const bool is_every = bound->address.text().starts_with(kEveryInterface);
    FRESHET_ASSIGN(bound->address,
                   SocketAddress::parse(bound->socket.get(zmq::sockopt::last_endpoint), true, Reach::any_host));
    // A neighbour goes by IPv4's loopback: a host may have IPv6 and no loopback of it.
    if (is_every) bound->address = bound->address.at_host("*");
  } catch (const zmq::error_t& error) {
    return fail(Code::unavailable, format("bind {}: {}", bound->address.text(), error.what()));
  }
  bound->listens.emplace(ParentsAddress::of(bound->address.text()));
  return bound;
}

template <typename SetUp>
Result<ZmqSocket> make_connector(zmq::context_t& context, zmq::socket_type type, SocketAddress address,
                                 const ClientCredentials* credentials, int events, Neighbours believed, SetUp set_up) {
  const std::string endpoint = address.endpoint();
  // A server proves its key, whoever it is.
  if (credentials != nullptr) believed = Neighbours::all;
  return make_socket(context, type, std::move(address), "connect", credentials, events, believed,
                     [&](zmq::socket_t& socket) {
                       socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
                       socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMsMax);
                       set_up(socket);
                       socket.connect(endpoint);
                     });
}

}  // namespace

Result<zmq::context_t> make_zmq_context(int sockets_max) {
  try {
    zmq::context_t context(1);
    context.set(zmq::ctxopt::max_sockets, sockets_max);
    return context;
  } catch (const zmq::error_t& error) {
    return fail(Code::unavailable, format("start ZeroMQ: {}", error.what()));
  }
}

Result<ZmqSocket> bind_router(zmq::context_t& context, SocketAddress address, const ServerCredentials* credentials) {
  return make_listener(context, zmq::socket_type::router, std::move(address), credentials, [&](zmq::socket_t& socket) {
    limit_messages(socket, protocol::kRequestBytesMax, credentials);
    socket.set(zmq::sockopt::sndhwm, kPipeMessagesMax);
    // A second peer that claims an identity is refused, and news for one that is gone or full is dropped.
    socket.set(zmq::sockopt::router_handover, false);
    socket.set(zmq::sockopt::router_mandatory, false);
  });
}

Status bind_again(ZmqSocket& socket) {
  // A path that is too long for the kernel is bound through its folder's descriptor, and that may be another folder's.
  FRESHET_ASSIGN(SocketAddress address, SocketAddress::parse(socket.address.text(), true));
  try {
    socket.socket.bind(address.endpoint());
  } catch (const zmq::error_t& error) {
    return fail(Code::unavailable, format("bind {}: {}", address.text(), error.what()));
  }
  socket.listens.emplace(ParentsAddress::of(address.endpoint()));
  socket.address = std::move(address);
  return {};
}

Result<ZmqSocket> connect_dealer(zmq::context_t& context, SocketAddress address, const ClientCredentials* credentials,
                                 Neighbours believed) {
  return make_connector(context, zmq::socket_type::dealer, std::move(address), credentials, kHandshakeEvents, believed,
                        [&](zmq::socket_t& socket) {
                          limit_messages(socket, protocol::kMessageBytesMax, credentials);
                          socket.set(zmq::sockopt::sndhwm, kPipeMessagesMax);
                        });
}

Result<ZmqSocket> bind_data(zmq::context_t& context, SocketAddress address, const ServerCredentials* credentials,
                            const DataLimits& limits) {
  return make_listener(context, zmq::socket_type::router, std::move(address), credentials, [&](zmq::socket_t& socket) {
    limit_messages(socket, limits.message_bytes_max, credentials);
    socket.set(zmq::sockopt::sndhwm, limits.sent_max);
    socket.set(zmq::sockopt::router_handover, false);
    socket.set(zmq::sockopt::router_mandatory, true);
  });
}

Result<ZmqSocket> connect_data(zmq::context_t& context, SocketAddress address, const ClientCredentials* credentials,
                               const DataLimits& limits, Neighbours believed) {
  return make_connector(context, zmq::socket_type::dealer, std::move(address), credentials,
                        kHandshakeEvents | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED, believed,
                        [&](zmq::socket_t& socket) {
                          limit_messages(socket, limits.message_bytes_max, credentials);
                          socket.set(zmq::sockopt::sndhwm, limits.sent_max);
                          socket.set(zmq::sockopt::reconnect_ivl, -1);
                        });
}

int descriptor_of(void* socket) {
  int descriptor = -1;
  std::size_t size = sizeof descriptor;
  return ::zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size) == 0 ? descriptor : -1;
}

std::optional<std::vector<zmq::message_t>> receive(zmq::socket_t& socket, std::size_t parts_max, Listener* listener) {
  try {
    std::vector<zmq::message_t> parts;
    std::size_t taken = 0;
    std::uint64_t bytes = 0;
    int sender = -1;
    for (bool more = true; more; ++taken) {
      zmq::message_t part;
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
      more = part.more();
      bytes += part.size() + kPartBytes;
      if (listener != nullptr && taken == 1) sender = sender_descriptor(part);
      if (taken < parts_max) parts.push_back(std::move(part));
    }
    if (listener != nullptr) listener->took(sender, bytes);
    if (taken > parts_max) parts.clear();
    return parts;
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
}

std::optional<std::vector<zmq::message_t>> receive(ZmqSocket& socket, std::size_t parts_max) {
  auto parts = receive(socket.socket, parts_max, nullptr);
  if (!parts) {
    socket.monitor->on_drained();
  } else if (!parts->empty() && !socket.monitor->admits(parts->front())) {
    parts->clear();
  }
  return parts;
}

bool send(zmq::socket_t& socket, const std::string& head, Bytes body) {
  try {
    if (!head.empty()) {
      zmq::message_t part(head.data(), head.size());
      if (!socket.send(part, zmq::send_flags::dontwait | zmq::send_flags::sndmore)) return false;
    }
    zmq::message_t part(body.data(), body.size());
    return socket.send(part, zmq::send_flags::dontwait).has_value();
  } catch (const zmq::error_t&) {
    return false;
  }
}

bool poll(std::vector<zmq::pollitem_t>& items, std::chrono::milliseconds at_most) {
  try {
    zmq::poll(items, at_most);
    return true;
  } catch (const zmq::error_t& error) {
    return error.num() == EINTR;
  }
}

}  // namespace freshet
