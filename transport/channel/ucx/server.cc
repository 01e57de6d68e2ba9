// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/env.h"
#include "core/base/fork_guard.h"
#include "core/base/format.h"
#include "core/base/wake.h"
#include "transport/channel/skeleton/server.h"
#include "transport/channel/ucx/address.h"
#include "transport/channel/ucx/peer.h"
#include "transport/channel/ucx/ucx_channel.h"
#include "transport/channel/ucx/worker.h"

namespace freshet::channel {
namespace ucx {
namespace {

/// Going to sleep and being woken costs more than a short transfer.
constexpr int kServerIdleRounds = 64;
constexpr Duration kServerClosingPatience = std::chrono::seconds(5);

/// What UCX's TCP carries as one message that its receiver can copy out of the socket's buffer, with its headers.
constexpr std::uint64_t kEagerBytes = 60 << 10;
constexpr std::uint64_t kRendezvousBytes = 1 << 20;

class UcxPort final : public Port {
 public:
  UcxPort(Service& service, const UcxServerOptions& options) : service_(service), options_(options) {}
  ~UcxPort() override {
    if (listener_ != nullptr) worker_->ucx().ucp_listener_destroy(listener_);
    worker_.reset();
    peers_.clear();  // After the worker: what it did not complete, it read until now.
  }
  Status start();

  ChannelKind kind() const override { return ChannelKind::ucx; }
  std::string address() const override { return address_; }
  Taken receive() override;
  bool send() override;
  void cut(const std::function<bool(const RequestQueue&)>& is_to_go) override;
  void sleep(const Wake& wake, Duration at_most) override;
  void close() override;
  int idle_rounds() const override { return kServerIdleRounds; }
  Status register_memory(Bytes memory) override { return worker_->register_memory(memory); }
  void forget_memory(Bytes memory) override { worker_->forget_memory(memory); }
  std::uint64_t bytes_registered() const override { return worker_->bytes_registered(); }

 private:
  Status listen(const Address& address);
  bool take_connections(Time now);
  void handle(const Incoming& message);

  Service& service_;
  UcxServerOptions options_;  ///< Constant between start() and close().
  std::string address_;
  std::optional<ParentsAddress> listens_;  ///< Children of this process let go of it.
  std::unique_ptr<Worker> worker_;
  ucp_listener_h listener_ = nullptr;
  std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;  ///< By token.
  std::vector<ucp_conn_request_h> connections_;
};

Status UcxPort::start() {
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
  return listen(address);
}

Status UcxPort::listen(const Address& address) {
  const Library& ucx = worker_->ucx();
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.bytes;
  params.conn_handler.cb = [](ucp_conn_request_h connection, void* server) {
    static_cast<UcxPort*>(server)->connections_.push_back(connection);
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

Port::Taken UcxPort::receive() {
  const bool progressed = worker_->progress();
  const Time now = system_clock().now();
  bool did = take_connections(now) || progressed;
  const auto messages = std::exchange(worker_->incoming(), {});
  for (const Incoming& message : messages) handle(message);
  did = did || !messages.empty();
  for (auto at = peers_.begin(); at != peers_.end();) {
    did = at->second->settle(now) || did;
    at = at->second->is_gone() ? peers_.erase(at) : std::next(at);
  }
  service_.peers.store(peers_.size());
  return {.any = did, .all = !progressed};
}

bool UcxPort::take_connections(Time now) {
  const auto connections = std::exchange(connections_, {});
  for (const ucp_conn_request_h connection : connections) {
    if (peers_.size() >= options_.peers_max) {
      worker_->ucx().ucp_listener_reject(listener_, connection);
      continue;
    }
    const std::uint64_t token = random_u64(system_env());
    auto peer = std::make_unique<Peer>(*worker_, service_, options_, token, now);
    if (peer->accept(connection)) peers_.emplace(token, std::move(peer));
  }
  return !connections.empty();
}

void UcxPort::handle(const Incoming& message) {
  const auto header = read_header<wire::ToServer>(message.header());
  const auto peer = header ? peers_.find(header->token()) : peers_.end();
  if (peer == peers_.end()) return worker_->drop(message);
  peer->second->on_message(message, *header, system_clock().now());
}

bool UcxPort::send() {
  bool did = false;
  for (const auto& [token, peer] : peers_) did = peer->send() || did;
  return did;
}

void UcxPort::cut(const std::function<bool(const RequestQueue&)>& is_to_go) {
  for (const auto& [token, peer] : peers_) {
    if (!peer->is_closing() && is_to_go(peer->queue())) peer->close();
  }
}

void UcxPort::sleep(const Wake& wake, Duration at_most) {
  const Result<bool> armed = worker_->arm();
  if (armed && !*armed) return;
  // One that is closing, or that cannot be armed for, is looked at now and then.
  const bool is_closing = std::ranges::any_of(peers_, [](const auto& peer) { return peer.second->is_closing(); });
  if (is_closing || !armed) at_most = std::min<Duration>(at_most, std::chrono::milliseconds(armed ? 20 : 10));
  pollfd descriptors[2] = {{.fd = wake.descriptor(), .events = POLLIN, .revents = 0},
                           {.fd = worker_->descriptor(), .events = POLLIN, .revents = 0}};
  ::poll(descriptors, 2, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(at_most).count()) + 1);
  if (descriptors[0].revents != 0) wake.acknowledge();
}

void UcxPort::close() {
  options_.peers_max = 0;  // Nobody else comes in.
  for (const auto& [token, peer] : peers_) peer->close();
  const Time deadline = system_clock().now() + kServerClosingPatience;
  while (!peers_.empty() && system_clock().now() < deadline) receive();
  for (const ucp_conn_request_h connection : std::exchange(connections_, {})) {
    worker_->ucx().ucp_listener_reject(listener_, connection);
  }
}

}  // namespace
}  // namespace ucx

Result<std::unique_ptr<ChannelServer>> open_ucx_server(FetchSource& source, const UcxServerOptions& options) {
  FRESHET_ASSIGN(Wake wake, Wake::open());
  auto service = std::make_unique<Service>(source, std::move(wake));
  auto port = std::make_unique<ucx::UcxPort>(*service, options);
  FRESHET_TRY(port->start());
  return Server::open(std::move(service), std::move(port));
}

}  // namespace freshet::channel
