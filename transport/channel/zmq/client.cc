// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/client.h"

#include <cstring>
#include <optional>
#include <utility>
#include <zmq.hpp>

#include "core/base/format.h"
#include "transport/channel/zmq/carrier.h"
#include "transport/channel/zmq/frame.h"
#include "transport/channel/zmq/zmq_channel.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet::channel {
namespace zmq_channel {
namespace {

/// Credit is given back in so many parts of a window, so that the server never waits for it.
constexpr std::uint64_t kCreditParts = 4;
constexpr int kMessagesPerLook = 4;

bool is_readable(void* socket) {
  int events = 0;
  std::size_t size = sizeof events;
  return ::zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

class ZmqConnection final : public Connection {
 public:
  ZmqConnection(zmq::context_t context, ZmqSocket socket, HandshakeParties parties, std::uint64_t window,
                std::unique_ptr<Rider> rider)
      : window_(window),
        parties_(std::move(parties)),
        context_(std::move(context)),
        socket_(std::move(socket)),
        rider_(std::move(rider)) {
    tell_server(frame_of(Kind::hello, 0, window_));
  }
  void send(Say what, std::uint64_t request, Bytes data) override;
  Result<bool> receive(Client& client, Time deadline) override;
  Result<bool> arm() override;

 private:
  bool take_messages(Client& client, Time deadline);
  void take(Client& client, const zmq::message_t& message);
  void take_events();
  void tell_server(const Frame& frame, Bytes data = {});
  void give_credit();

  const std::uint64_t window_;
  const HandshakeParties parties_;
  zmq::context_t context_;
  ZmqSocket socket_;
  const std::unique_ptr<Rider> rider_;  ///< Null for zmq.
  const Rider::Say say_ = [this](const Frame& frame, Bytes data) { tell_server(frame, data); };
  std::optional<Error> gone_;  ///< Why it ended: what came before is still taken.
  std::uint64_t credit_ = 0;   ///< Taken, and not told yet.
};

void ZmqConnection::send(Say what, std::uint64_t request, Bytes data) {
  switch (what) {
    case Say::fetch: return tell_server(frame_of(Kind::fetch, request), data);
    case Say::cancel: return tell_server(frame_of(Kind::cancel, request));
    case Say::ping:
      if (credit_ != 0) give_credit();
      return tell_server(frame_of(Kind::ping));
  }
}

Result<bool> ZmqConnection::receive(Client& client, Time deadline) {
  take_events();
  bool did = take_messages(client, deadline);
  if (rider_ != nullptr && !client.is_broken()) {
    FRESHET_ASSIGN(const bool rode, rider_->receive(client, say_));
    did = did || rode;
  }
  if (!did && gone_) return fail(*gone_);
  return did;
}

bool ZmqConnection::take_messages(Client& client, Time deadline) {
  bool did = false;
  while (true) {
    for (int i = 0; i < kMessagesPerLook; ++i) {
      zmq::message_t message;
      try {
        if (!socket_.socket.recv(message, zmq::recv_flags::dontwait)) {
          socket_.monitor->on_drained();
          return did;
        }
      } catch (const zmq::error_t& error) {
        gone_ = Error(Code::unavailable, format("receive from {}: {}", parties_.address, error.what()));
        return did;
      }
      did = true;
      if (!socket_.monitor->admits(message)) continue;
      take(client, message);
      if (client.is_broken()) return did;
    }
    if (system_clock().now() >= deadline) return did;
  }
}

void ZmqConnection::take(Client& client, const zmq::message_t& message) {
  client.heard();
  const auto frame = read_frame(bytes_of(message));
  if (!frame || message.more()) {
    return client.break_off(
        Error(Code::unsupported,
              format("{} is not a data channel of Freshet, or is of another version of Freshet", parties_.address)));
  }
  credit_ += cost_of(message.size());
  const Bytes data = bytes_of(message).subspan(sizeof(Frame));
  switch (static_cast<Kind>(frame->kind())) {
    case Kind::chunk:
      client.take_chunk(frame->request(),
                        {.piece = frame->piece(),
                         .encoding = frame->detail(),
                         .total = frame->total(),
                         .offset = frame->offset(),
                         .chunk_bytes = rider_ != nullptr ? kCarriedChunkBytes : 0},
                        data);
      break;
    case Kind::batch: client.take_batch(frame->request(), frame->detail(), data); break;
    case Kind::ended: client.take_ended(frame->request(), frame->detail(), data); break;
    case Kind::pong: break;
    default: {
      const Status taken = rider_ != nullptr ? rider_->take(client, *frame, data, say_)
                                             : fail(Code::corrupt, format("a message of kind {}", frame->kind()));
      if (!taken) client.break_off(Error(taken.error()).with_context(parties_.address));
    }
  }
  if (credit_ >= window_ / kCreditParts) give_credit();
}

void ZmqConnection::give_credit() { tell_server(frame_of(Kind::credit, 0, std::exchange(credit_, 0))); }

void ZmqConnection::take_events() {
  while (const auto event = socket_.monitor->take()) {
    if (gone_) continue;
    gone_ = handshake_error(*event, parties_);
    if (gone_ || (event->kind != ZMQ_EVENT_DISCONNECTED && event->kind != ZMQ_EVENT_CLOSED)) continue;
    gone_ = Error(Code::unavailable, event->kind == ZMQ_EVENT_CLOSED
                                         ? format("nobody listens at {}", parties_.address)
                                         : format("the connection to {} ended", parties_.address));
  }
}

void ZmqConnection::tell_server(const Frame& frame, Bytes data) {
  try {
    zmq::message_t message(sizeof frame + data.size());
    std::memcpy(message.data(), &frame, sizeof frame);
    if (!data.empty()) std::memcpy(static_cast<std::byte*>(message.data()) + sizeof frame, data.data(), data.size());
    if (socket_.socket.send(message, zmq::send_flags::dontwait) || gone_) return;
    gone_ = Error(Code::unavailable, format("{} takes no messages", parties_.address));
  } catch (const zmq::error_t& error) {
    gone_ = Error(Code::unavailable, format("send to {}: {}", parties_.address, error.what()));
  }
}

Result<bool> ZmqConnection::arm() {
  // ZeroMQ's descriptor tells of a change once: what came while we sent is not told again.
  return !is_readable(socket_.socket.handle()) && !socket_.monitor->has_more() &&
         !is_readable(socket_.monitor->handle()) && (rider_ == nullptr || !rider_->is_ready());
}

}  // namespace

Result<std::unique_ptr<ChannelClient>> open_carried_client(const std::string& address, const ZmqClientOptions& options,
                                                           ChannelKind kind, std::unique_ptr<Rider> rider) {
  if (options.window_bytes < kWindowBytesMin || options.window_bytes > kWindowBytesMax) {
    return fail(Code::invalid_argument, "the zmq channel: a client's window is of 64 KiB to 256 MiB");
  }
  const ClientCredentials* const proof = options.credentials ? &*options.credentials : nullptr;
  FRESHET_ASSIGN(SocketAddress parsed,
                 SocketAddress::parse(address, false, proof != nullptr ? Reach::any_host : Reach::this_host));
  if (!parsed.is_tcp()) return fail(Code::invalid_argument, format("the zmq channel: {} is not tcp", address));
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  FRESHET_ASSIGN(ZmqSocket socket, connect_data(context, std::move(parsed), proof,
                                                {.message_bytes_max = kToClientBytesMax}, options.believed));
  std::vector<int> descriptors{descriptor_of(socket.socket.handle()), descriptor_of(socket.monitor->handle())};
  const bool is_carried = rider != nullptr;
  if (is_carried) descriptors.push_back(rider->descriptor());
  return Client::open(std::make_unique<ZmqConnection>(std::move(context), std::move(socket), parties_of(address, proof),
                                                      options.window_bytes, std::move(rider)),
                      {.kind = kind,
                       .address = address,
                       .rules = {.channel = to_string(kind),
                                 .traits = traits_of(kind),
                                 .chunk_bytes_max = kChunkBytesMax,
                                 .in_order = !is_carried},
                       .answers_cancels = true,
                       .descriptors = std::move(descriptors)});
}

}  // namespace zmq_channel

Result<std::unique_ptr<ChannelClient>> open_zmq_client(const std::string& address, const ZmqClientOptions& options) {
  return zmq_channel::open_carried_client(address, options, ChannelKind::zmq, nullptr);
}

}  // namespace freshet::channel
