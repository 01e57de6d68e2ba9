// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/channel/zmq/buffers.h"
#include "transport/channel/zmq/peer.h"
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
constexpr std::chrono::milliseconds kServerRound{60'000};

class Server final : public ChannelServer {
 public:
  struct Parts {
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    ZmqSocket socket;
    Wake wake;
  };
  Server(FetchSource& source, const ZmqServerOptions& options, Parts parts);
  ~Server() override {
    stopping_ = true;
    wake_.wake();
    if (thread_.joinable()) thread_.join();
  }
  void start() {
    thread_ = std::thread([this] { run(); });
  }

  ChannelKind kind() const override { return ChannelKind::zmq; }
  std::string address() const override { return address_; }
  void cut_off(protocol::SessionId session) override {
    {
      const MutexLock lock(mutex_);
      cut_off_.push_back(session);
    }
    wake_.wake();
  }
  void look_again() override { wake_.wake(); }
  ChannelStat stat() const override {
    return {.bytes_sent = counters_.bytes_sent.load(),
            .requests = counters_.requests.load(),
            .refused = counters_.refused.load(),
            .peers = counters_.peers.load()};
  }

 private:
  /// ZeroMQ's name for a connection.
  using Identity = std::string;
  struct Connection {
    int descriptor = -1;
    std::string key;  ///< Empty without keys.
    Peer peer;
  };
  using Connections = std::map<Identity, Connection>;

  void run();
  void take_commands();
  /// True when no message is left.
  bool take_messages();
  void take(const zmq::message_t& identity, const zmq::message_t& message, Time now);
  void welcome(const Identity& identity, const Frame& frame, int descriptor, std::string_view key, Time now);
  void forget(int descriptor);
  /// Ends the connection by force.
  Connections::iterator put_out(Connections::iterator at);
  /// True when somebody could be sent more.
  bool send_some();
  bool send_next(const Identity& identity, Peer& peer);
  void cut_silent(Time now);
  std::chrono::milliseconds time_to_sleep(Time now) const;

  FetchSource& source_;
  const std::uint64_t chunk_bytes_;
  const std::uint64_t window_bytes_;
  const std::size_t peers_max_;
  const std::string address_;
  const Wake wake_;
  Counters counters_;
  const std::shared_ptr<Buffers> buffers_;

  // The thread's. The socket ends before the authenticator does, and that before the context.
  zmq::context_t context_;
  const std::unique_ptr<Authenticator> authenticator_;  ///< Null without keys.
  ZmqSocket socket_;
  Listener listener_;
  Connections connections_;
  Rejects rejects_{"zmq channel"};

  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<protocol::SessionId> cut_off_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;
};

Server::Server(FetchSource& source, const ZmqServerOptions& options, Parts parts)
    : source_(source),
      chunk_bytes_(options.chunk_bytes),
      window_bytes_(options.window_bytes),
      peers_max_(options.peers_max),
      address_(parts.socket.address.text()),
      wake_(std::move(parts.wake)),
      buffers_(std::make_shared<Buffers>(Peer::fill_bytes(options.chunk_bytes))),
      context_(std::move(parts.context)),
      authenticator_(std::move(parts.authenticator)),
      socket_(std::move(parts.socket)),
      listener_(socket_, options.credentials ? Neighbours::all : options.neighbours, kArrivals,
                [this](int descriptor) { forget(descriptor); }) {}

void Server::run() {
  std::vector<zmq::pollitem_t> items = {{socket_.socket.handle(), 0, ZMQ_POLLIN, 0},
                                        {nullptr, wake_.descriptor(), ZMQ_POLLIN, 0}};
  listener_.watch(items);
  bool more = false;
  while (!stopping_) {
    poll(items, more ? std::chrono::milliseconds(0) : time_to_sleep(system_clock().now()));
    wake_.acknowledge();
    // Before the messages: a descriptor that was somebody else's must be forgotten before its next owner is heard.
    listener_.tend(system_clock().now());
    take_commands();
    // Before send_some(), which may take long: messages that come meanwhile wait in the socket, and their senders would
    // seem silent.
    if (take_messages()) cut_silent(system_clock().now());
    more = send_some();
    counters_.peers = connections_.size();
  }
  connections_.clear();
}

void Server::take_commands() {
  std::vector<protocol::SessionId> sessions;
  {
    const MutexLock lock(mutex_);
    sessions.swap(cut_off_);
  }
  for (const protocol::SessionId session : sessions) {
    for (auto at = connections_.begin(); at != connections_.end();) {
      at = at->second.peer.fetches_for(session) ? put_out(at) : std::next(at);
    }
  }
}

bool Server::take_messages() {
  for (int i = 0; i < kMessagesPerRound; ++i) {
    const auto parts = receive(socket_.socket, 2, &listener_);
    if (!parts) {
      listener_.on_drained();
      return true;
    }
    const Time now = system_clock().now();
    if (parts->size() == 2) {
      take((*parts)[0], (*parts)[1], now);
    } else {
      rejects_.count("a message is not in two parts", now);
    }
  }
  return false;
}

void Server::take(const zmq::message_t& identity, const zmq::message_t& message, Time now) {
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
    taken = at->second.peer.take(*frame, bytes_of(message).subspan(sizeof(Frame)), now);
  } else if (static_cast<Kind>(frame->kind()) == Kind::hello) {
    return welcome(name, *frame, descriptor, sender_key(message), now);
  } else {
    // Of somebody who was put out a moment ago, mostly.
    return listener_.put_out(descriptor);
  }
  if (taken) return;
  counters_.refused.fetch_add(1, std::memory_order_relaxed);
  rejects_.count(format("{} is disconnected: {}", listener_.name_of(descriptor), taken.error().message()), now);
  if (at != connections_.end()) {
    put_out(at);
  } else {
    listener_.put_out(descriptor);
  }
}

void Server::welcome(const Identity& identity, const Frame& frame, int descriptor, std::string_view key, Time now) {
  if (connections_.size() >= peers_max_) {
    rejects_.count(
        format("{} is disconnected: there are {} clients, the limit", listener_.name_of(descriptor), peers_max_), now);
    return listener_.put_out(descriptor);
  }
  const auto has_key = [&](const auto& entry) { return entry.second.key == key; };
  const auto of_key = static_cast<std::size_t>(std::ranges::count_if(connections_, has_key));
  const std::size_t most = Listener::key_connections_max(peers_max_, of_key == connections_.size());
  if (!key.empty() && of_key >= most) {
    rejects_.count(format("{} is disconnected: its key has {} of the {} clients that may be, the most for one key now",
                          listener_.name_of(descriptor), of_key, peers_max_),
                   now);
    return listener_.put_out(descriptor);
  }
  connections_.emplace(
      identity,
      Connection{
          .descriptor = descriptor,
          .key = std::string(key),
          .peer = Peer({.source = source_, .counters = counters_, .chunk_bytes = chunk_bytes_},
                       std::clamp(frame.total(), std::min(kWindowBytesMin, window_bytes_), window_bytes_), now)});
}

void Server::forget(int descriptor) {
  std::erase_if(connections_, [&](const auto& entry) { return entry.second.descriptor == descriptor; });
}

Server::Connections::iterator Server::put_out(Connections::iterator at) {
  listener_.put_out(at->second.descriptor);
  return connections_.erase(at);
}

bool Server::send_some() {
  bool more = false;
  for (auto at = connections_.begin(); at != connections_.end();) {
    Peer& peer = at->second.peer;
    int sent = 0;
    while (sent < kSendsPerTurn && peer.is_busy() && send_next(at->first, peer)) ++sent;
    more = more || sent == kSendsPerTurn;
    ++at;
  }
  return more;
}

bool Server::send_next(const Identity& identity, Peer& peer) {
  Buffers::Buffer buffer = buffers_->take();
  const std::size_t bytes = peer.fill(buffer.room());
  if (bytes == 0) return false;
  try {
    zmq::message_t message = Buffers::make_message(std::move(buffer), bytes);
    socket_.socket.send(zmq::buffer(identity), zmq::send_flags::dontwait | zmq::send_flags::sndmore);
    socket_.socket.send(message, zmq::send_flags::dontwait);
    return true;
  } catch (const zmq::error_t&) {
    return false;  // It is gone, and the listener will say so.
  }
}

void Server::cut_silent(Time now) {
  for (auto at = connections_.begin(); at != connections_.end();) {
    const Peer& peer = at->second.peer;
    at = peer.is_busy() && now - peer.heard() > kPeerSilence ? put_out(at) : std::next(at);
  }
}

std::chrono::milliseconds Server::time_to_sleep(Time now) const {
  std::chrono::milliseconds wait = kServerRound;
  for (const auto& [identity, connection] : connections_) {
    if (!connection.peer.is_busy()) continue;
    const Duration left = std::max(connection.peer.heard() + kPeerSilence - now, Duration::zero());
    wait = std::min(wait, std::chrono::ceil<std::chrono::milliseconds>(left) + std::chrono::milliseconds(1));
  }
  return wait;
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
}  // namespace zmq_channel

Result<std::unique_ptr<ChannelServer>> open_zmq_server(FetchSource& source, const ZmqServerOptions& options) {
  FRESHET_TRY(zmq_channel::check_options(options));
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
                 bind_data(context, std::move(address), proof, {.message_bytes_max = zmq_channel::kToServerBytesMax}));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  auto server =
      std::make_unique<zmq_channel::Server>(source, options,
                                            zmq_channel::Server::Parts{.context = std::move(context),
                                                                       .authenticator = std::move(authenticator),
                                                                       .socket = std::move(socket),
                                                                       .wake = std::move(wake)});
  try {
    server->start();
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a channel's thread: {}", error.what()));
  }
  return server;
}

}  // namespace freshet::channel
