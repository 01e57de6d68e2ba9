#include "transport/zmq/sockets.h"

#include <cstring>

#include "core/format.h"
#include "transport/protocol/messages.h"

namespace freshet {
namespace {

/// Messages waiting for one peer. A subscriber asks for one version at a time, so an honest pipe is nearly empty.
constexpr int kPipeMessagesMax = 64;
constexpr int kAnnouncementsMax = 1024;
constexpr int kAnnouncementBytesMax = 64 * 1024;
constexpr int kReconnectMs = 20;
constexpr int kReconnectMsMax = 500;

/// Runs `set_up` on a new socket and turns what it throws into an error.
template <typename SetUp>
Result<ZmqSocket> make_socket(zmq::context_t& context, zmq::socket_type type, SocketAddress address,
                              std::string_view verb, SetUp set_up) {
  try {
    zmq::socket_t socket(context, type);
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::ipv6, false);
    set_up(socket);
    return ZmqSocket{.socket = std::move(socket), .address = std::move(address)};
  } catch (const zmq::error_t& error) {
    const Code code = error.num() == EADDRINUSE ? Code::already_exists : Code::unavailable;
    return fail(code, format("{} {}: {}", verb, address.text(), error.what()));
  }
}

/// Where it is bound, for an address that left the port to the system.
Result<ZmqSocket> with_bound_address(Result<ZmqSocket> bound) {
  if (!bound || !bound->address.is_tcp()) return bound;
  try {
    FRESHET_ASSIGN(bound->address, SocketAddress::parse(bound->socket.get(zmq::sockopt::last_endpoint), false));
  } catch (const zmq::error_t& error) {
    return fail(Code::unavailable, format("bind {}: {}", bound->address.text(), error.what()));
  }
  return bound;
}

}  // namespace

Result<zmq::context_t> make_zmq_context() {
  try {
    zmq::context_t context(1);
    context.set(zmq::ctxopt::max_sockets, 64);
    return context;
  } catch (const zmq::error_t& error) {
    return fail(Code::unavailable, format("start ZeroMQ: {}", error.what()));
  }
}

Result<ZmqSocket> bind_router(zmq::context_t& context, SocketAddress address) {
  const std::string endpoint = address.endpoint();
  return with_bound_address(
      make_socket(context, zmq::socket_type::router, std::move(address), "bind", [&](zmq::socket_t& socket) {
        socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(protocol::kRequestBytesMax));
        socket.set(zmq::sockopt::sndhwm, kPipeMessagesMax);
        socket.set(zmq::sockopt::rcvhwm, kPipeMessagesMax);
        // A second peer that claims an identity is refused, and news for one that is gone or full is dropped.
        socket.set(zmq::sockopt::router_handover, false);
        socket.set(zmq::sockopt::router_mandatory, false);
        socket.bind(endpoint);
      }));
}

Result<ZmqSocket> bind_announcements(zmq::context_t& context, SocketAddress address) {
  const std::string endpoint = address.endpoint();
  return with_bound_address(
      make_socket(context, zmq::socket_type::xpub, std::move(address), "bind", [&](zmq::socket_t& socket) {
        socket.set(zmq::sockopt::xpub_verbose, true);
        socket.set(zmq::sockopt::maxmsgsize, std::int64_t{kAnnouncementBytesMax});
        socket.set(zmq::sockopt::sndhwm, kAnnouncementsMax);
        socket.bind(endpoint);
      }));
}

Result<ZmqSocket> connect_dealer(zmq::context_t& context, SocketAddress address) {
  const std::string endpoint = address.endpoint();
  return make_socket(context, zmq::socket_type::dealer, std::move(address), "connect", [&](zmq::socket_t& socket) {
    socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(protocol::kMessageBytesMax));
    socket.set(zmq::sockopt::sndhwm, kPipeMessagesMax);
    socket.set(zmq::sockopt::rcvhwm, kPipeMessagesMax);
    socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
    socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMsMax);
    socket.connect(endpoint);
  });
}

Result<ZmqSocket> connect_announcements(zmq::context_t& context, SocketAddress address, const std::string& topic) {
  const std::string endpoint = address.endpoint();
  return make_socket(context, zmq::socket_type::sub, std::move(address), "connect", [&](zmq::socket_t& socket) {
    socket.set(zmq::sockopt::maxmsgsize, std::int64_t{kAnnouncementBytesMax});
    socket.set(zmq::sockopt::rcvhwm, kAnnouncementsMax);
    socket.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
    socket.set(zmq::sockopt::reconnect_ivl_max, kReconnectMsMax);
    socket.set(zmq::sockopt::subscribe, topic);
    socket.connect(endpoint);
  });
}

std::optional<std::vector<zmq::message_t>> receive(zmq::socket_t& socket, std::size_t parts_max) {
  try {
    std::vector<zmq::message_t> parts;
    bool too_many = false;
    for (bool more = true; more;) {
      zmq::message_t part;
      if (!socket.recv(part, zmq::recv_flags::dontwait)) return std::nullopt;
      more = part.more();
      if (parts.size() == parts_max) too_many = true;
      if (!too_many) parts.push_back(std::move(part));
    }
    if (too_many) parts.clear();
    return parts;
  } catch (const zmq::error_t&) {
    return std::nullopt;
  }
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
