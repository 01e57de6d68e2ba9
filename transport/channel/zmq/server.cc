// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/channel/skeleton/server.h"
#include "transport/channel/zmq/buffers.h"
#include "transport/channel/zmq/carrier.h"
#include "transport/channel/zmq/frame.h"
#include "transport/channel/zmq/zmq_channel.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/listener.h"

namespace freshet::channel {
namespace zmq_channel {
namespace {

constexpr int kMessagesPerRound = 256;
/// What a client may have on its way here and not taken yet.
constexpr ArrivalLimits kArrivals{.connection_bytes = 2 * kToServerBytesMax, .all_bytes = 4 * kToServerBytesMax};
/// To one peer before the next has its turn.
constexpr int kSendsPerTurn = 4;

class ZmqPort final : public Port {
 public:
  struct Parts {
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    ZmqSocket socket;
    ChannelKind kind = ChannelKind::zmq;
    std::unique_ptr<Carrier> carrier;  ///< Null for zmq.
  };
  ZmqPort(Service& service, const ZmqServerOptions& options, Parts parts);

  ChannelKind kind() const override { return kind_; }
  std::string address() const override { return address_; }
  Taken receive() override;
  bool send() override;
  void cut(const std::function<bool(const RequestQueue&)>& is_to_go) override;
  void sleep(const Wake& wake, Duration at_most) override;
  void close() override { connections_.clear(); }

 private:
  /// ZeroMQ's name for a connection.
  using Identity = std::string;
  /// Invariant: what was filled and not yet credited costs at most the window, or is one message.
  struct Peer : Line {
    using Line::Line;
    Identity identity;
    int descriptor = -1;
    std::string key;  ///< Empty without keys.
    std::uint64_t window = 0;
    std::uint64_t unpaid = 0;  ///< Cost of what was filled and not credited.

    bool has_credit(std::size_t bytes) const { return unpaid == 0 || unpaid + cost_of(bytes) <= window; }
  };
  using Connections = std::map<Identity, Peer>;

  void take(const zmq::message_t& identity, const zmq::message_t& message, Time now);
  Status take(Peer& peer, const Frame& frame, Bytes data, Time now);
  void welcome(const Identity& identity, const Frame& frame, int descriptor, std::string_view key, Time now);
  /// Ends the connection by force.
  Connections::iterator put_out(Connections::iterator at);
  bool send_next(Peer& peer);
  /// Fills the next message into `room`. Its size; 0 when there is nothing to say or no credit for it.
  std::size_t fill(Peer& peer, MutableBytes room);
  std::size_t fill_part(Peer& peer, MutableBytes room);
  static std::size_t fill_message(Peer& peer, MutableBytes room);
  static std::size_t fill_reply(Peer& peer, MutableBytes room);

  Service& service_;
  const ZmqServerOptions options_;
  const ChannelKind kind_;
  const std::string address_;
  const std::shared_ptr<Buffers> buffers_;
  // The socket ends before the authenticator does, and that before the context.
  zmq::context_t context_;
  const std::unique_ptr<Authenticator> authenticator_;  ///< Null without keys.
  ZmqSocket socket_;
  Listener listener_;
  std::vector<zmq::pollitem_t> items_;
  const std::unique_ptr<Carrier> carrier_;  ///< Null for zmq.
  std::uint64_t last_number_ = 0;
  Connections connections_;
  Rejects rejects_{"zmq channel"};
};

ZmqPort::ZmqPort(Service& service, const ZmqServerOptions& options, Parts parts)
    : service_(service),
      options_(options),
      kind_(parts.kind),
      address_(parts.socket.address.text()),
      buffers_(std::make_shared<Buffers>(sizeof(Frame) + options.chunk_bytes)),
      context_(std::move(parts.context)),
      authenticator_(std::move(parts.authenticator)),
      socket_(std::move(parts.socket)),
      listener_(socket_, options.credentials ? Neighbours::all : options.neighbours, kArrivals,
                [this](int descriptor) {
                  std::erase_if(connections_, [&](const auto& entry) { return entry.second.descriptor == descriptor; });
                }),
      carrier_(std::move(parts.carrier)) {
  items_ = {{socket_.socket.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, service.wake.descriptor(), ZMQ_POLLIN, 0}};
  listener_.watch(items_);
}

void ZmqPort::sleep(const Wake& wake, Duration at_most) {
  if (carrier_ != nullptr) at_most = std::clamp(carrier_->due() - system_clock().now(), Duration(0), at_most);
  poll(items_, std::chrono::ceil<std::chrono::milliseconds>(at_most) + std::chrono::milliseconds(1));
  wake.acknowledge();
}

Port::Taken ZmqPort::receive() {
  // Before the messages: a descriptor that was somebody else's must be forgotten before its next owner is heard.
  listener_.tend(system_clock().now());
  Taken taken{.all = false};
  for (int i = 0; i < kMessagesPerRound && !taken.all; ++i) {
    const auto parts = freshet::receive(socket_.socket, 2, &listener_);
    if (!parts) {
      listener_.on_drained();
      taken.all = true;
      break;
    }
    taken.any = true;
    const Time now = system_clock().now();
    if (parts->size() == 2) {
      take((*parts)[0], (*parts)[1], now);
    } else {
      rejects_.count("a message is not in two parts", now);
    }
  }
  service_.peers = connections_.size();
  return taken;
}

void ZmqPort::take(const zmq::message_t& identity, const zmq::message_t& message, Time now) {
  const Identity name = identity.to_string();
  const int descriptor = sender_descriptor(message);
  listener_.tend(now);
  if (!listener_.admits(descriptor)) return;
  const auto at = connections_.find(name);
  const auto frame = read_frame(bytes_of(message));
  Status taken;
  if (authenticator_ != nullptr && !authenticator_->allows(sender_key(message))) {
    taken = fail(Code::failed_precondition, "its key is not on the allow-list any more");
  } else if (!frame) {
    taken = fail(Code::corrupt, "a message that is not of this protocol");
  } else if (at != connections_.end()) {
    taken = take(at->second, *frame, bytes_of(message).subspan(sizeof(Frame)), now);
  } else if (static_cast<Kind>(frame->kind()) == Kind::hello) {
    return welcome(name, *frame, descriptor, sender_key(message), now);
  } else {
    // Of somebody who was put out a moment ago, mostly.
    return listener_.put_out(descriptor);
  }
  if (taken) return;
  service_.refused.fetch_add(1, std::memory_order_relaxed);
  rejects_.count(format("{} is disconnected: {}", listener_.name_of(descriptor), taken.error().message()), now);
  if (at != connections_.end()) {
    put_out(at);
  } else {
    listener_.put_out(descriptor);
  }
}

Status ZmqPort::take(Peer& peer, const Frame& frame, Bytes data, Time now) {
  peer.queue.hear(now);
  switch (static_cast<Kind>(frame.kind())) {
    case Kind::fetch: return peer.queue.take_fetch(frame.request(), data);
    case Kind::cancel: return peer.queue.cancel(frame.request());
    case Kind::credit:
      if (frame.total() > peer.unpaid) return fail(Code::corrupt, "a credit for more than was sent");
      peer.unpaid -= frame.total();
      return {};
    case Kind::ping: peer.queue.ping(); return {};
    default:
      if (carrier_ != nullptr) return carrier_->take(peer, frame, data, now);
      return fail(Code::corrupt, format("a message of kind {}", frame.kind()));
  }
}

void ZmqPort::welcome(const Identity& identity, const Frame& frame, int descriptor, std::string_view key, Time now) {
  const std::size_t peers_max = options_.peers_max;
  if (connections_.size() >= peers_max) {
    rejects_.count(
        format("{} is disconnected: there are {} clients, the limit", listener_.name_of(descriptor), peers_max), now);
    return listener_.put_out(descriptor);
  }
  const auto has_key = [&](const auto& entry) { return entry.second.key == key; };
  const auto of_key = static_cast<std::size_t>(std::ranges::count_if(connections_, has_key));
  const std::size_t most = Listener::key_connections_max(peers_max, of_key == connections_.size());
  if (!key.empty() && of_key >= most) {
    rejects_.count(format("{} is disconnected: its key has {} of the {} clients that may be, the most for one key now",
                          listener_.name_of(descriptor), of_key, peers_max),
                   now);
    return listener_.put_out(descriptor);
  }
  const std::uint64_t most_bytes = options_.window_bytes;
  const RequestQueue::Facts facts{.chunk_bytes = options_.chunk_bytes,
                                  .small_bytes = kSmallAnswerBytes,
                                  .answers_cancels = true,
                                  .traits = traits_of(kind_)};
  Peer& peer = connections_.try_emplace(identity, ++last_number_, service_, facts, carrier_.get(), now).first->second;
  peer.identity = identity;
  peer.descriptor = descriptor;
  peer.key = std::string(key);
  peer.window = std::clamp(frame.total(), std::min(kWindowBytesMin, most_bytes), most_bytes);
}

ZmqPort::Connections::iterator ZmqPort::put_out(Connections::iterator at) {
  listener_.put_out(at->second.descriptor);
  return connections_.erase(at);
}

void ZmqPort::cut(const std::function<bool(const RequestQueue&)>& is_to_go) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    at = is_to_go(at->second.queue) ? put_out(at) : std::next(at);
  }
  service_.peers = connections_.size();
}

bool ZmqPort::send() {
  bool any = false;
  for (auto& [identity, peer] : connections_) {
    int sent = 0;
    while (sent < kSendsPerTurn && peer.queue.is_busy() && send_next(peer)) ++sent;
    any = any || sent > 0;
  }
  if (carrier_ == nullptr) return any;
  const auto next = [this](Line& line) {
    while (!line.waiting && line.queue.is_busy() && send_next(static_cast<Peer&>(line))) {
    }
  };
  return carrier_->carry(next, system_clock().now()) || any;
}

bool ZmqPort::send_next(Peer& peer) {
  Buffers::Buffer buffer = buffers_->take();
  const std::size_t bytes = fill(peer, buffer.room());
  if (bytes == 0) return false;
  try {
    zmq::message_t message = Buffers::make_message(std::move(buffer), bytes);
    socket_.socket.send(zmq::buffer(peer.identity), zmq::send_flags::dontwait | zmq::send_flags::sndmore);
    socket_.socket.send(message, zmq::send_flags::dontwait);
    return true;
  } catch (const zmq::error_t&) {
    return false;  // It is gone, and the listener will say so.
  }
}

std::size_t ZmqPort::fill(Peer& peer, MutableBytes room) {
  RequestQueue& queue = peer.queue;
  std::size_t bytes = 0;
  const bool is_free = queue.next_ended() == nullptr && !queue.is_pong_wanted();
  if (is_free && !peer.messages.empty()) {
    bytes = fill_message(peer, room);
  } else if (is_free && !peer.waiting && peer.has_credit(room.size())) {
    bytes = fill_part(peer, room);
  }
  // Making an answer may have failed, which is to be told.
  if (bytes == 0) bytes = fill_reply(peer, room);
  if (bytes != 0) peer.unpaid += cost_of(bytes);
  return bytes;
}

std::size_t ZmqPort::fill_message(Peer& peer, MutableBytes room) {
  const std::vector<std::byte>& message = peer.messages.front();
  const std::size_t bytes = message.size();
  if (!peer.has_credit(bytes)) return 0;
  std::copy(message.begin(), message.end(), room.begin());
  peer.messages.pop_front();
  peer.queue.uncount_message();
  return bytes;
}

std::size_t ZmqPort::fill_part(Peer& peer, MutableBytes room) {
  const MutableBytes behind = room.subspan(sizeof(Frame));
  const auto part = peer.queue.next(behind);
  if (!part) return 0;
  Frame frame = frame_of(Kind::batch, part->request, 0, 0, 0, part->answers);
  if (part->answers == 0) {
    if (carrier_ != nullptr && carrier_->takes(peer, *part, system_clock().now())) {
      peer.waiting = part;
      return 0;
    }
    frame = frame_of(part->request, part->chunk);
    std::memcpy(behind.data(), part->bytes.data(), part->bytes.size());
  }
  std::memcpy(room.data(), &frame, sizeof frame);
  peer.queue.done(*part, true);
  return sizeof frame + part->bytes.size();
}

std::size_t ZmqPort::fill_reply(Peer& peer, MutableBytes room) {
  const auto* ended = peer.queue.next_ended();
  if (ended == nullptr && !peer.queue.is_pong_wanted()) return 0;
  const std::string_view text = ended == nullptr ? std::string_view() : std::string_view(ended->text);
  if (!peer.has_credit(sizeof(Frame) + text.size())) return 0;
  const Frame frame = ended == nullptr
                          ? frame_of(Kind::pong)
                          : frame_of(Kind::ended, ended->request, 0, 0, 0, static_cast<std::uint32_t>(ended->code));
  std::memcpy(room.data(), &frame, sizeof frame);
  if (!text.empty()) std::memcpy(room.data() + sizeof frame, text.data(), text.size());
  const std::size_t bytes = sizeof frame + text.size();
  if (ended == nullptr) {
    peer.queue.told_pong();
  } else {
    peer.queue.told_ended();
  }
  return bytes;
}

Status check_options(const ZmqServerOptions& options) {
  if (options.chunk_bytes < kChunkBytesMin || options.chunk_bytes > kChunkBytesMax) {
    return fail(Code::invalid_argument, "the zmq channel: chunks are of 4 KiB to 1 MiB");
  }
  if (options.window_bytes < options.chunk_bytes || options.window_bytes > kWindowBytesMax || options.peers_max == 0) {
    return fail(Code::invalid_argument,
                "the zmq channel: a window is of a chunk to 256 MiB, and for one peer at least");
  }
  return {};
}

}  // namespace

Line::Line(std::uint64_t line_number, Service& service, const RequestQueue::Facts& facts, Carrier* of_server, Time now)
    : number(line_number), carrier(of_server), queue(service, facts, now) {
  if (carrier != nullptr) carrier->add(*this);
}

Line::~Line() {
  if (carrier != nullptr) carrier->remove(*this);
}

void Line::post(const Frame& frame, Bytes data) {
  std::vector<std::byte>& message = messages.emplace_back(sizeof frame + data.size());
  std::memcpy(message.data(), &frame, sizeof frame);
  std::copy(data.begin(), data.end(), message.begin() + sizeof frame);
  queue.count_message();
}

Result<std::unique_ptr<ChannelServer>> open_carried_server(FetchSource& source, const ZmqServerOptions& options,
                                                           ChannelKind kind, const MakeCarrier& make_carrier) {
  FRESHET_TRY(check_options(options));
  const ServerCredentials* const proof = options.credentials ? &*options.credentials : nullptr;
  FRESHET_ASSIGN(SocketAddress address,
                 SocketAddress::parse(options.address, true, proof != nullptr ? Reach::any_host : Reach::this_host));
  if (!address.is_tcp()) {
    return fail(Code::invalid_argument, format("the zmq channel: {} is not tcp", options.address));
  }
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  std::unique_ptr<Authenticator> authenticator;
  if (proof != nullptr) {
    FRESHET_ASSIGN(authenticator, Authenticator::open(context, proof->allow_file));
  }
  FRESHET_ASSIGN(ZmqSocket socket,
                 bind_data(context, std::move(address), proof, {.message_bytes_max = kToServerBytesMax}));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  auto service = std::make_unique<Service>(source, std::move(wake));
  auto port = std::make_unique<ZmqPort>(*service, options,
                                        ZmqPort::Parts{.context = std::move(context),
                                                       .authenticator = std::move(authenticator),
                                                       .socket = std::move(socket),
                                                       .kind = kind,
                                                       .carrier = make_carrier ? make_carrier(*service) : nullptr});
  return Server::open(std::move(service), std::move(port));
}

}  // namespace zmq_channel

Result<std::unique_ptr<ChannelServer>> open_zmq_server(FetchSource& source, const ZmqServerOptions& options) {
  return zmq_channel::open_carried_server(source, options, ChannelKind::zmq, {});
}

}  // namespace freshet::channel
