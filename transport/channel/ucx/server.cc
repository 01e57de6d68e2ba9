// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/fork_guard.h"
#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/channel/ucx/address.h"
#include "transport/channel/ucx/peer.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel {
namespace ucx {
namespace {

/// Rounds without anything to do before the thread sleeps, while answers are on their way: going to sleep and being
/// woken costs more than a short transfer.
constexpr int kServerIdleRounds = 64;
constexpr Duration kServerClosingPatience = std::chrono::seconds(5);

/// What UCX's TCP carries as one message that its receiver can copy out of the socket's buffer, with its headers.
constexpr std::uint64_t kEagerBytes = 60 << 10;
constexpr std::uint64_t kRendezvousBytes = 1 << 20;

class Server final : public ChannelServer {
 public:
  Server(FetchSource& source, const UcxServerOptions& options, Wake wake)
      : source_(source), options_(options), wake_(std::move(wake)) {}
  ~Server() override {
    stopping_.store(true);
    wake_.wake();
    if (thread_.joinable()) thread_.join();
    if (listener_ != nullptr) worker_->ucx().ucp_listener_destroy(listener_);
    answerer_.stop();
    worker_.reset();
    peers_.clear();  // After the worker: what it did not complete, it read until now.
  }

  Status start();

  ChannelKind kind() const override { return ChannelKind::ucx; }
  std::string address() const override { return address_; }
  void cut_off(protocol::SessionId session) override {
    {
      const MutexLock lock(mutex_);
      cut_off_.push_back(session);
    }
    wake_.wake();
  }
  Status register_memory(Bytes memory) override { return worker_->register_memory(memory); }
  void look_again() override { wake_.wake(); }
  void forget_memory(Bytes memory) override { worker_->forget_memory(memory); }
  ChannelStat stat() const override {
    return {.bytes_sent = counters_.bytes_sent.load(),
            .requests = counters_.requests.load(),
            .refused = counters_.refused.load(),
            .peers = counters_.peers.load(),
            .bytes_registered = worker_->bytes_registered()};
  }

 private:
  Status listen(const Address& address);
  void run();
  void close_all();
  bool take_commands();
  bool take_connections(Time now);
  bool take_rendezvous();
  void handle(const Incoming& message);
  bool carry_on(Time now);
  bool is_busy() const;
  void cut_silent(Time now);
  int sleep_ms(Time now) const;
  void sleep(Time now);

  FetchSource& source_;
  UcxServerOptions options_;  ///< Constant once it was started.
  const Wake wake_;
  Answerer answerer_{wake_};
  Counters counters_;
  std::string address_;
  std::optional<ParentsAddress> listens_;  ///< Children of this process let go of it.
  std::unique_ptr<Worker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<protocol::SessionId> cut_off_ FRESHET_GUARDED_BY(mutex_);

  // The thread's.
  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;  ///< By token.
  std::vector<ucp_conn_request_h> connections_;

  std::thread thread_;
};

Status Server::start() {
  FRESHET_ASSIGN(const Address address, parse_address(options_.address, /*any_port=*/true));
  FRESHET_TRY(check_trusted(address, options_.address, options_.trusted_fabric));
  if (options_.rendezvous == UcxRendezvous::automatic) {
    options_.rendezvous = pays_by_rendezvous(address) ? UcxRendezvous::always : UcxRendezvous::never;
  }
  if (options_.chunk_bytes == 0) {
    options_.chunk_bytes = options_.rendezvous == UcxRendezvous::always ? kRendezvousBytes : kEagerBytes;
  }
  if (options_.chunk_bytes < kChunkBytesMin || options_.chunk_bytes > kChunkBytesMax || options_.sends_in_flight == 0 ||
      options_.sends_in_flight > 1024) {
    return fail(Code::invalid_argument, "the ucx channel: chunks are 16 KiB to 64 MiB, and 1 to 1024 are in flight");
  }
  FRESHET_ASSIGN(worker_, Worker::open({.loopback = address.loopback,
                                        .rendezvous = options_.rendezvous == UcxRendezvous::always}));
  for (const MessageId id : {MessageId::fetch, MessageId::cancel, MessageId::ping}) {
    FRESHET_TRY(worker_->take_messages(id, [this](const Incoming& message) { handle(message); }));
  }
  FRESHET_TRY(listen(address));
  thread_ = std::thread([this] { run(); });
  return {};
}

Status Server::listen(const Address& address) {
  const Library& ucx = worker_->ucx();
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.bytes;
  params.conn_handler.cb = [](ucp_conn_request_h connection, void* server) {
    static_cast<Server*>(server)->connections_.push_back(connection);
  };
  params.conn_handler.arg = this;
  if (const ucs_status_t status = ucx.ucp_listener_create(worker_->handle(), &params, &listener_); status != UCS_OK) {
    return fail(error_from(ucx, status, format("listen on {}", options_.address)));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  if (const ucs_status_t status = ucx.ucp_listener_query(listener_, &attributes); status != UCS_OK) {
    return fail(error_from(ucx, status, format("ask for the port of {}", options_.address)));
  }
  address_ = to_string(attributes.sockaddr);
  listens_.emplace(ParentsAddress::of("tcp" + address_.substr(address_.find(':'))));
  return {};
}

void Server::run() {
  int idle = 0;
  while (!stopping_.load()) {
    bool did = worker_->progress();
    const Time now = system_clock().now();
    did = take_commands() || did;
    did = take_connections(now) || did;
    did = take_rendezvous() || did;
    did = carry_on(now) || did;
    if (did) {
      idle = 0;
      continue;
    }
    if (is_busy() && ++idle < kServerIdleRounds) continue;
    idle = 0;
    cut_silent(now);
    sleep(now);
  }
  close_all();
}

bool Server::take_commands() {
  std::vector<protocol::SessionId> sessions;
  {
    const MutexLock lock(mutex_);
    sessions.swap(cut_off_);
  }
  for (const protocol::SessionId session : sessions) {
    for (const auto& [token, peer] : peers_) {
      if (peer->fetches_for(session)) peer->close();
    }
  }
  return !sessions.empty();
}

bool Server::take_connections(Time now) {
  const auto connections = std::exchange(connections_, {});
  for (const ucp_conn_request_h connection : connections) {
    if (peers_.size() >= options_.peers_max) {
      worker_->ucx().ucp_listener_reject(listener_, connection);
      continue;
    }
    const std::uint64_t token = random_u64(system_env());
    auto peer = std::make_unique<Peer>(
        Peer::Context{
            .worker = *worker_, .source = source_, .answerer = answerer_, .counters = counters_, .options = options_},
        token, now);
    if (peer->accept(connection)) peers_.emplace(token, std::move(peer));
  }
  counters_.peers.store(peers_.size());
  return !connections.empty();
}

bool Server::take_rendezvous() {
  const auto messages = std::exchange(worker_->incoming(), {});
  for (const Incoming& message : messages) handle(message);
  return !messages.empty();
}

void Server::handle(const Incoming& message) {
  const auto header = read_header<wire::ToServer>(message.header());
  const auto peer = header ? peers_.find(header->token()) : peers_.end();
  if (peer == peers_.end()) return worker_->drop(message);
  peer->second->on_message(message, *header, system_clock().now());
}

bool Server::carry_on(Time now) {
  bool did = false;
  for (auto at = peers_.begin(); at != peers_.end();) {
    did = at->second->carry_on(now) || did;
    at = at->second->is_gone() ? peers_.erase(at) : std::next(at);
  }
  counters_.peers.store(peers_.size());
  return did;
}

bool Server::is_busy() const {
  for (const auto& [token, peer] : peers_) {
    if (peer->is_busy()) return true;
  }
  return false;
}

void Server::cut_silent(Time now) {
  for (const auto& [token, peer] : peers_) {
    if (peer->is_busy() && now - peer->heard() > kPeerSilence) peer->close();
  }
}

int Server::sleep_ms(Time now) const {
  Duration left = std::chrono::hours(1);
  bool timed = false;
  for (const auto& [token, peer] : peers_) {
    if (!peer->is_busy()) continue;
    // One that is closing has no time of its own; it is looked at now and then.
    const Duration due =
        peer->is_closing() ? Duration(std::chrono::milliseconds(20)) : peer->heard() + kPeerSilence - now;
    left = std::min(left, due);
    timed = true;
  }
  if (!timed) return -1;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::max(left, Duration::zero())).count()) + 1;
}

void Server::sleep(Time now) {
  const Result<bool> armed = worker_->arm();
  if (armed && !*armed) return;
  constexpr int kUnarmedMs = 10;
  pollfd descriptors[2] = {{.fd = wake_.descriptor(), .events = POLLIN, .revents = 0},
                           {.fd = worker_->descriptor(), .events = POLLIN, .revents = 0}};
  ::poll(descriptors, 2, armed ? sleep_ms(now) : kUnarmedMs);
  if (descriptors[0].revents != 0) wake_.acknowledge();
}

void Server::close_all() {
  for (const auto& [token, peer] : peers_) peer->close();
  const Time deadline = system_clock().now() + kServerClosingPatience;
  for (Time now = system_clock().now(); !peers_.empty() && now < deadline; now = system_clock().now()) {
    worker_->progress();
    take_rendezvous();
    carry_on(now);
  }
  for (const ucp_conn_request_h connection : std::exchange(connections_, {})) {
    worker_->ucx().ucp_listener_reject(listener_, connection);
  }
}

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<ChannelServer>> open_ucx_server(FetchSource& source, const UcxServerOptions& options) {
  FRESHET_ASSIGN(Wake wake, Wake::open());
  auto server = std::make_unique<ucx::Server>(source, options, std::move(wake));
  FRESHET_TRY(server->start());
  return server;
}

}  // namespace freshet::channel
