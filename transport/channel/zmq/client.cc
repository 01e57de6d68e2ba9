// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/zmq/client.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::channel {
namespace zmq_channel {
namespace {

/// Credit is given back in so many parts of a window, so that the server never waits for it.
constexpr std::uint64_t kCreditParts = 4;
constexpr int kMessagesPerLook = 4;

Status watch(int epoll, int descriptor) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) return fail_errno(errno, "watch a descriptor");
  return {};
}

bool is_readable(void* socket) {
  int events = 0;
  std::size_t size = sizeof events;
  return ::zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

}  // namespace

Client::Client(Parts parts, std::uint64_t window)
    : window_(window),
      parties_(std::move(parts.parties)),
      epoll_(std::move(parts.epoll)),
      timer_(std::move(parts.timer)),
      context_(std::move(parts.context)) {
  socket_.emplace(std::move(parts.socket));
  heard_ = system_clock().now();
  tell_server(frame_of(Kind::hello, 0, window_));
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
  if (requests_.contains(number) || draining_.contains(number)) {
    return fail(Code::invalid_argument, format("request {} is in flight", number));
  }
  if (requests_.empty()) heard_ = system_clock().now();  // It had nothing to say until now.
  tell_server(frame_of(Kind::fetch, number), encode(request));
  requests_.try_emplace(number, std::move(request), sink);
  kick();
  return {};
}

void Client::cancel(std::uint64_t request) {
  Request* const found = running(request);
  if (found == nullptr) return;
  give_up(*found, fail(Code::cancelled, format("request {} was cancelled", request)));
  kick();
}

Client::Request* Client::running(std::uint64_t request) {
  const auto at = requests_.find(request);
  return at == requests_.end() || at->second.ending ? nullptr : &at->second;
}

void Client::give_up(Request& request, Status status) {
  const std::uint64_t number = request.reception.request().request;
  draining_.insert(number);
  tell_server(frame_of(Kind::cancel, number));
  request.ending = std::move(status);
}

Result<bool> Client::progress(std::chrono::microseconds at_most) {
  if (dead_) return fail(*dead_);
  std::uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  const Time deadline = system_clock().now() + std::max(at_most, std::chrono::microseconds(0));
  bool did = true;
  while (did && !broken_ && system_clock().now() < deadline) {
    take_events();
    did = take_messages(deadline);
    did = tell_endings() || did;
  }
  if (!broken_ && !did) broken_ = gone_;
  if (!broken_) check_silence(system_clock().now());
  if (broken_) {
    die(std::move(*broken_));
    return fail(*dead_);
  }
  if (did || has_more()) return true;
  set_timer(system_clock().now());
  return false;
}

bool Client::take_messages(Time deadline) {
  bool did = false;
  while (true) {
    for (int i = 0; i < kMessagesPerLook; ++i) {
      zmq::message_t message;
      try {
        if (!socket_->socket.recv(message, zmq::recv_flags::dontwait)) {
          socket_->monitor->on_drained();
          return did;
        }
      } catch (const zmq::error_t& error) {
        gone_ = Error(Code::unavailable, format("receive from {}: {}", parties_.address, error.what()));
        return did;
      }
      did = true;
      if (!socket_->monitor->admits(message)) continue;
      take(message);
      if (broken_) return did;
    }
    if (system_clock().now() >= deadline) return did;
  }
}

void Client::take(const zmq::message_t& message) {
  heard_ = system_clock().now();
  asked_.reset();
  const auto frame = read_frame(bytes_of(message));
  if (!frame || message.more()) {
    broken_ =
        Error(Code::unsupported,
              format("{} is not a data channel of Freshet, or is of another version of Freshet", parties_.address));
    return;
  }
  credit_ += cost_of(message.size());
  const Bytes data = bytes_of(message).subspan(sizeof(Frame));
  switch (static_cast<Kind>(frame->kind())) {
    case Kind::chunk:
    case Kind::batch: take_answer(*frame, data); break;
    case Kind::ended: take_ended(*frame, data); break;
    case Kind::pong: break;
    default: broken_ = Error(Code::corrupt, format("{} sent a message of kind {}", parties_.address, frame->kind()));
  }
  if (credit_ >= window_ / kCreditParts) give_credit();
}

void Client::give_credit() {
  tell_server(frame_of(Kind::credit, 0, credit_));
  credit_ = 0;
}

void Client::take_answer(const Frame& frame, Bytes data) {
  Request* const request = running(frame.request());
  if (request == nullptr) return;  // Late, of a request that was given up.
  Reception& reception = request->reception;
  Status taken = static_cast<Kind>(frame.kind()) == Kind::chunk ? reception.take_chunk(frame, data)
                                                                : reception.take_batch(frame, data);
  if (request->ending) return;  // The sink cancelled it.
  if (!taken) {
    if (reception.was_lied_to()) broken_ = taken.error();
    return give_up(*request, std::move(taken));
  }
  if (reception.is_complete()) request->ending = Status();
}

void Client::take_ended(const Frame& frame, Bytes data) {
  draining_.erase(frame.request());
  Request* const request = running(frame.request());
  if (request == nullptr || frame.detail() > static_cast<std::uint32_t>(Code::io_error)) return;
  const Bytes text = data.first(std::min(data.size(), kErrorTextBytesMax));
  request->ending = fail(static_cast<Code>(frame.detail()),
                         shown(std::string_view(reinterpret_cast<const char*>(text.data()), text.size())));
}

void Client::take_events() {
  while (const auto event = socket_->monitor->take()) {
    if (gone_) continue;
    gone_ = handshake_error(*event, parties_);
    if (gone_ || (event->kind != ZMQ_EVENT_DISCONNECTED && event->kind != ZMQ_EVENT_CLOSED)) continue;
    gone_ = Error(Code::unavailable, event->kind == ZMQ_EVENT_CLOSED
                                         ? format("nobody listens at {}", parties_.address)
                                         : format("the connection to {} ended", parties_.address));
  }
}

bool Client::tell_endings() {
  bool did = false;
  for (auto at = requests_.begin(); at != requests_.end();) {
    if (!at->second.ending) {
      ++at;
      continue;
    }
    const auto node = requests_.extract(at);
    Request& request = node.mapped();
    bytes_received_ += request.reception.bytes();
    request.reception.sink().on_request_done(node.key(), std::move(*request.ending));
    did = true;
    at = requests_.upper_bound(node.key());  // The sink may have queued another.
  }
  return did;
}

void Client::tell_server(const Frame& frame, Bytes data) {
  if (!socket_) return;
  said_ = system_clock().now();
  try {
    zmq::message_t message(sizeof frame + data.size());
    std::memcpy(message.data(), &frame, sizeof frame);
    if (!data.empty()) std::memcpy(static_cast<std::byte*>(message.data()) + sizeof frame, data.data(), data.size());
    if (socket_->socket.send(message, zmq::send_flags::dontwait) || gone_) return;
    gone_ = Error(Code::unavailable, format("{} takes no messages", parties_.address));
  } catch (const zmq::error_t& error) {
    gone_ = Error(Code::unavailable, format("send to {}: {}", parties_.address, error.what()));
  }
}

void Client::check_silence(Time now) {
  if (requests_.empty()) return asked_.reset();
  // Said also while its answers come: that is how the server knows that they are taken.
  if (now - said_ >= kPingAfter) {
    if (credit_ != 0) {
      give_credit();
    } else {
      tell_server(frame_of(Kind::ping));
    }
  }
  if (now - heard_ < kPingAfter) return;
  if (!asked_) {
    asked_ = now;
    tell_server(frame_of(Kind::ping));
  } else if (now - *asked_ >= kPeerSilence) {
    broken_ = Error(Code::unavailable,
                    format("the connection to {}: nothing came for {} ms", parties_.address, kPeerSilence.count()));
  }
}

void Client::set_timer(Time now) {
  itimerspec spec{};
  if (!requests_.empty()) {
    const Time due = std::min(said_ + kPingAfter, asked_ ? *asked_ + kPeerSilence : heard_ + kPingAfter);
    const std::int64_t ns = std::max(due - now, Duration(std::chrono::milliseconds(1))).count();
    spec.it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

bool Client::has_more() {
  // ZeroMQ's descriptor tells of a change once: what came while we sent is not told again.
  return is_readable(socket_->socket.handle()) || socket_->monitor->has_more() ||
         is_readable(socket_->monitor->handle());
}

void Client::kick() {
  const itimerspec spec{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Client::die(Error why) {
  dead_ = std::move(why);
  for (auto& [number, request] : std::exchange(requests_, {})) {
    bytes_received_ += request.reception.bytes();
    request.reception.sink().on_request_done(number, request.ending ? *request.ending : fail(*dead_));
  }
  // Its descriptor is ZeroMQ's, and goes with the socket; the timer keeps ours readable, so that the end is learned of.
  socket_.reset();
  kick();
}

std::uint64_t Client::bytes_received() const {
  std::uint64_t bytes = bytes_received_;
  for (const auto& [number, request] : requests_) bytes += request.reception.bytes();
  return bytes;
}

}  // namespace zmq_channel

Result<std::unique_ptr<ChannelClient>> open_zmq_client(const std::string& address, const ZmqClientOptions& options) {
  using zmq_channel::Client;
  if (options.window_bytes < zmq_channel::kWindowBytesMin || options.window_bytes > zmq_channel::kWindowBytesMax) {
    return fail(Code::invalid_argument, "the zmq channel: a client's window is of 64 KiB to 256 MiB");
  }
  const ClientCredentials* const proof = options.credentials ? &*options.credentials : nullptr;
  FRESHET_ASSIGN(SocketAddress parsed,
                 SocketAddress::parse(address, false, proof != nullptr ? Reach::any_host : Reach::this_host));
  if (!parsed.is_tcp()) return fail(Code::invalid_argument, format("the zmq channel: {} is not tcp", address));
  FileDescriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return fail_errno(errno, "make an epoll descriptor");
  FileDescriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return fail_errno(errno, "make a timer descriptor");
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context());
  FRESHET_ASSIGN(ZmqSocket socket,
                 connect_data(context, std::move(parsed), proof, {.message_bytes_max = zmq_channel::kToClientBytesMax},
                              options.believed));
  FRESHET_TRY(zmq_channel::watch(epoll.get(), timer.get()));
  FRESHET_TRY(zmq_channel::watch(epoll.get(), descriptor_of(socket.socket.handle())));
  FRESHET_TRY(zmq_channel::watch(epoll.get(), descriptor_of(socket.monitor->handle())));
  return std::make_unique<Client>(Client::Parts{.context = std::move(context),
                                                .socket = std::move(socket),
                                                .epoll = std::move(epoll),
                                                .timer = std::move(timer),
                                                .parties = parties_of(address, proof)},
                                  options.window_bytes);
}

}  // namespace freshet::channel
