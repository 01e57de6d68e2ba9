// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/client.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/env.h"
#include "core/base/format.h"
#include "transport/channel/ucx/ucx_channel.h"

namespace freshet::channel::ucx {
namespace {

constexpr Duration kUcxPingAfter = kPeerSilence / 4;
constexpr Duration kClientClosingPatience = std::chrono::seconds(1);
/// Rounds without anything to do before progress() says so, while answers are on their way.
constexpr int kClientIdleRounds = 64;

Status watch(int epoll, int descriptor) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) return fail_errno(errno, "watch a UCX descriptor");
  return {};
}

}  // namespace

/// UCX shows nobody its connections, so it is asked who listens where they lead.
Status Client::check_server() const {
  if (!server_.loopback || believed_ == Neighbours::all) return {};
  Status listener = check_listener(server_.storage);
  if (!listener) return fail(std::move(listener).error().with_context(format("{} is not believed", address_)));
  return {};
}

Status Client::start(const Address& address) {
  server_ = address;
  // That nobody listens there is found out later. Whoever listens then is looked at with the welcome.
  if (Status listener = check_server(); !listener && listener.error().code() == Code::failed_precondition) {
    return listener;
  }
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return fail_errno(errno, "make an epoll descriptor");
  timer_ = FileDescriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer_) return fail_errno(errno, "make a timer descriptor");
  FRESHET_ASSIGN(worker_, Worker::open({.loopback = address.loopback, .rendezvous = pays_by_rendezvous(address)}));
  FRESHET_TRY(watch(epoll_.get(), timer_.get()));
  FRESHET_TRY(watch(epoll_.get(), worker_->descriptor()));
  for (const MessageId id :
       {MessageId::welcome, MessageId::chunk, MessageId::batch, MessageId::ended, MessageId::pong}) {
    FRESHET_TRY(worker_->take_messages(id, [this](const Incoming& message) { handle(message); }));
  }
  own_token_ = random_u64(system_env()) | 1;

  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.get();
  params.sockaddr.addrlen = address.bytes;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* client, ucp_ep_h, ucs_status_t status) {
    static_cast<Client*>(client)->endpoint_status_ = status;
  };
  params.err_handler.arg = this;
  const Library& ucx = worker_->ucx();
  if (const ucs_status_t status = ucx.ucp_ep_create(worker_->handle(), &params, &endpoint_); status != UCS_OK) {
    return fail(error_from(ucx, status, format("connect to {}", address_)));
  }
  heard_ = system_clock().now();
  asked_ = heard_;
  looked_ = heard_;
  kick();
  return {};
}

Client::~Client() { shut(); }

void Client::shut() {
  if (worker_ == nullptr) return;
  for (const Incoming& message : std::exchange(worker_->incoming(), {})) worker_->drop(message);
  if (endpoint_ != nullptr) {
    const ucs_status_ptr_t closing = worker_->close_by_force(std::exchange(endpoint_, nullptr));
    const Time deadline = system_clock().now() + kClientClosingPatience;
    bool closed = worker_->closed(closing);
    while ((!closed || received_.size() < receives_.size()) && system_clock().now() < deadline) {
      worker_->progress();
      for (const Incoming& message : std::exchange(worker_->incoming(), {})) worker_->drop(message);
      closed = closed || worker_->closed(closing);
    }
  }
  // Whatever did not complete by then ends with the worker.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, worker_->descriptor(), nullptr);
  worker_.reset();
  received_.clear();
  receives_.clear();
  sends_.clear();
}

std::uint64_t Client::bytes_received() const {
  std::uint64_t bytes = bytes_received_;
  for (const auto& [number, request] : requests_) bytes += request.reception.bytes();
  return bytes;
}

void Client::die(Error why) {
  dead_ = std::move(why);
  shut();
  for (auto& [number, request] : std::exchange(requests_, {})) {
    request.reception.sink().on_request_done(number, request.ending ? *request.ending : fail(*dead_));
  }
  kick();  // The descriptor stays readable: whoever polls it learns of the end.
}

Status Client::fetch(FetchRequest request, FetchSink& sink) {
  if (dead_) return fail(*dead_);
  if (request.pieces.empty() || request.pieces.size() > kPiecesMax) {
    return fail(Code::invalid_argument, format("a fetch has 1 to {} pieces", kPiecesMax));
  }
  if (requests_.size() >= kRequestsInFlightMax) {
    return fail(Code::out_of_space, format("{} requests are in flight", requests_.size()));
  }
  const std::uint64_t number = request.request;
  const auto [at, fresh] = requests_.try_emplace(number, std::move(request), sink);
  if (!fresh) return fail(Code::invalid_argument, format("request {} is in flight", number));
  kick();
  return {};
}

void Client::cancel(std::uint64_t request) {
  Request* const found = running(request);
  if (found == nullptr) return;
  end(*found, fail(Code::cancelled, format("request {} was cancelled", request)));
  kick();
}

Client::Request* Client::running(std::uint64_t request) {
  const auto at = requests_.find(request);
  return at == requests_.end() || at->second.ending ? nullptr : &at->second;
}

void Client::end(Request& request, Status status) {
  // The server need not send what is not wanted any more.
  if (!status && request.sent) tell_server(MessageId::cancel, request.reception.request().request, {});
  request.ending = std::move(status);
}

void Client::give_up(Request& request, Error error) {
  if (request.reception.was_lied_to()) broken_ = error;
  end(request, fail(std::move(error)));
}

Result<bool> Client::progress(std::chrono::microseconds at_most) {
  if (dead_) return fail(*dead_);
  std::uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  Time now = system_clock().now();
  const Time deadline = now + std::max(at_most, std::chrono::microseconds(0));
  // While nobody called this, nothing could come: what it was silent for then is not the server's doing.
  if (asked_ && now - looked_ > kUcxPingAfter) asked_ = now;
  int idle = 0;
  do {
    bool did = worker_->progress();
    did = handle_messages() || did;
    did = settle_receives() || did;
    did = tell_endings() || did;
    now = system_clock().now();
    looked_ = now;
    if (endpoint_status_ != UCS_OK && !broken_) {
      const Error why = error_from(worker_->ucx(), endpoint_status_, format("the connection to {}", address_));
      broken_ = Error(Code::unavailable, why.message());
    }
    if (broken_) {
      die(*broken_);
      return fail(*dead_);
    }
    if (did) {
      idle = 0;
      continue;
    }
    if (!requests_.empty() && ++idle < kClientIdleRounds) continue;
    check_silence(now);
    if (dead_) return fail(*dead_);
    const Result<bool> armed = worker_->arm();
    if (!armed) {
      die(armed.error());
      return fail(*dead_);
    }
    if (!*armed) continue;
    set_timer(now);
    return false;
  } while (now < deadline);
  return true;
}

bool Client::handle_messages() {
  bool did = false;
  if (server_token_ != 0) {
    for (auto& [number, request] : requests_) {
      if (request.sent || request.ending) continue;
      request.sent = true;
      tell_server(MessageId::fetch, number, encode(request.reception.request()));
      did = true;
    }
  }
  const auto messages = std::exchange(worker_->incoming(), {});
  for (const Incoming& message : messages) handle(message);
  return did || !messages.empty();
}

void Client::handle(const Incoming& message) {
  heard_ = system_clock().now();
  if (server_token_ != 0) asked_.reset();
  switch (message.id) {
    case MessageId::welcome: take_welcome(message); return worker_->drop(message);
    case MessageId::chunk: return take_chunk(message);
    case MessageId::batch: return take_batch(message);
    case MessageId::ended: take_ended(message); return worker_->drop(message);
    default: return worker_->drop(message);
  }
}

void Client::take_welcome(const Incoming& message) {
  const auto header = read_header<wire::Welcome>(message.header());
  if (!header || header->magic() != kMagic || header->token() == 0) {
    broken_ =
        Error(Code::unsupported,
              format("the connection to {}: the peer is not Freshet, or is of another version of Freshet", address_));
  } else if (Status listener = check_server(); !listener) {
    broken_ = listener.error();
  } else if (server_token_ == 0) {
    server_token_ = header->token();
    asked_.reset();
  }
}

void Client::take_chunk(const Incoming& message) {
  const auto header = read_header<wire::Chunk>(message.header());
  Request* const request = header && header->token() == own_token_ ? running(header->request()) : nullptr;
  if (request == nullptr) return worker_->drop(message);  // Of a request that was cancelled, mostly.
  auto memory = request->reception.place(*header, message.length);
  if (!memory) {
    worker_->drop(message);
    return give_up(*request, std::move(memory).error());
  }
  auto receive = std::make_unique<Receive>();
  receive->request = header->request();
  receive->chunk = *header;
  if (message.rendezvous) return this->receive(message, *memory, std::move(receive));
  std::copy(message.payload.begin(), message.payload.end(), memory->begin());
  ++request->receiving;
  settle(*receive);
}

void Client::take_batch(const Incoming& message) {
  const auto header = read_header<wire::Batch>(message.header());
  Request* const request = header && header->token() == own_token_ ? running(header->request()) : nullptr;
  if (request == nullptr || message.length > kBatchBytesMax) return worker_->drop(message);
  auto receive = std::make_unique<Receive>();
  receive->request = header->request();
  receive->batch = *header;
  if (message.rendezvous) {
    receive->bounce.resize(message.length);
    const MutableBytes to = receive->bounce;
    return this->receive(message, to, std::move(receive));
  }
  Status taken = request->reception.take_batch(*header, message.payload);
  if (!taken) return give_up(*request, std::move(taken).error());
  if (request->reception.is_complete() && !request->ending) end(*request, {});
}

void Client::take_ended(const Incoming& message) {
  const auto header = read_header<wire::Ended>(message.header());
  Request* const request = header && header->token() == own_token_ ? running(header->request()) : nullptr;
  if (request == nullptr || header->code() > static_cast<std::uint32_t>(Code::io_error)) return;
  std::string text;
  const Bytes payload = message.payload.first(std::min(message.payload.size(), kErrorTextBytesMax));
  text.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  request->sent = false;  // The server has forgotten it already.
  end(*request, fail(static_cast<Code>(header->code()), std::move(text)));
}

void Client::receive(const Incoming& message, MutableBytes to, std::unique_ptr<Receive> receive) {
  receive->client = this;
  Receive* const kept = receive.get();
  receives_.push_back(std::move(receive));
  ++requests_.at(kept->request).receiving;
  const ucs_status_ptr_t request = worker_->receive(message, to, &Client::on_received, kept);
  if (UCS_PTR_IS_PTR(request)) return;
  kept->status = UCS_PTR_RAW_STATUS(request);
  received_.push_back(kept);
}

void Client::on_received(void* request, ucs_status_t status, std::size_t, void* argument) {
  Receive& receive = *static_cast<Receive*>(argument);
  receive.status = status;
  receive.client->received_.push_back(&receive);
  receive.client->worker_->ucx().ucp_request_free(request);
}

bool Client::settle_receives() {
  const auto received = std::exchange(received_, {});
  for (const Receive* receive : received) {
    settle(*receive);
    std::erase_if(receives_, [&](const auto& kept) { return kept.get() == receive; });
  }
  return !received.empty();
}

void Client::settle(const Receive& receive) {
  heard_ = system_clock().now();
  asked_.reset();
  Request& request = requests_.at(receive.request);
  --request.receiving;
  if (request.ending) return;
  if (receive.status != UCS_OK) {
    const Error why = error_from(worker_->ucx(), receive.status, format("receive from {}", address_));
    return end(request, fail(Code::unavailable, why.message()));
  }
  if (receive.batch) {
    if (Status taken = request.reception.take_batch(*receive.batch, receive.bounce); !taken) {
      return give_up(request, std::move(taken).error());
    }
  } else {
    request.reception.arrived(*receive.chunk);
  }
  if (request.reception.is_complete() && !request.ending) end(request, {});
}

bool Client::tell_endings() {
  bool did = false;
  for (auto at = requests_.begin(); at != requests_.end();) {
    if (!at->second.ending || at->second.receiving != 0) {
      ++at;
      continue;
    }
    const auto node = requests_.extract(at++);
    Request& request = node.mapped();
    bytes_received_ += request.reception.bytes();
    request.reception.sink().on_request_done(node.key(), std::move(*request.ending));
    did = true;
    at = requests_.upper_bound(node.key());  // The sink may have queued another.
  }
  return did;
}

void Client::tell_server(MessageId id, std::uint64_t request, std::vector<std::byte> data) {
  std::erase_if(sends_, [](const auto& send) { return send->done; });
  if (endpoint_ == nullptr) return;
  auto send = std::make_unique<Send>();
  send->client = this;
  send->data = std::move(data);
  const wire::ToServer header(server_token_, own_token_, request);
  std::memcpy(send->header.data(), &header, sizeof header);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = &Client::on_sent;
  param.user_data = send.get();
  const ucs_status_ptr_t sending =
      worker_->ucx().ucp_am_send_nbx(endpoint_, static_cast<unsigned>(id), send->header.data(), sizeof header,
                                     send->data.data(), send->data.size(), &param);
  // A send that failed needs no answer of its own: UCX tells of the broken connection.
  if (UCS_PTR_IS_PTR(sending)) sends_.push_back(std::move(send));
}

void Client::on_sent(void* request, ucs_status_t, void* argument) {
  Send& send = *static_cast<Send*>(argument);
  send.done = true;
  send.client->worker_->ucx().ucp_request_free(request);
}

void Client::check_silence(Time now) {
  if (requests_.empty() && server_token_ != 0) return asked_.reset();
  if (!asked_) {
    if (now - heard_ < kUcxPingAfter) return;
    asked_ = now;
    tell_server(MessageId::ping, 0, {});
    return;
  }
  if (now - *asked_ < kPeerSilence) return;
  die(Error(Code::unavailable, format("the connection to {}: nothing came for {} ms", address_, kPeerSilence.count())));
}

void Client::set_timer(Time now) {
  itimerspec spec{};
  if (asked_ || !requests_.empty()) {
    const Duration left = asked_ ? *asked_ + kPeerSilence - now : heard_ + kUcxPingAfter - now;
    const std::int64_t ns = std::max(left, Duration(std::chrono::milliseconds(1))).count();
    spec.it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Client::kick() {
  const itimerspec spec{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

Status Client::register_memory(Bytes memory) {
  if (worker_ == nullptr) return fail(*dead_);
  return worker_->register_memory(memory);
}

}  // namespace freshet::channel::ucx

namespace freshet::channel {

Result<std::unique_ptr<ChannelClient>> open_ucx_client(const std::string& text, const UcxClientOptions& options) {
  FRESHET_ASSIGN(const ucx::Address address, ucx::parse_address(text, /*any_port=*/false));
  FRESHET_TRY(ucx::check_trusted(address, text, options.trusted_fabric));
  auto client = std::make_unique<ucx::Client>(text, options.believed);
  FRESHET_TRY(client->start(address));
  return client;
}

}  // namespace freshet::channel
