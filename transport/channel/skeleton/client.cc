// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/skeleton/client.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::channel {

Result<std::unique_ptr<ChannelClient>> Client::open(std::unique_ptr<Connection> connection, Facts facts) {
  std::unique_ptr<Client> client(new Client(std::move(connection), std::move(facts)));
  client->epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!client->epoll_) return fail_errno(errno, "make an epoll descriptor");
  client->timer_ = FileDescriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!client->timer_) return fail_errno(errno, "make a timer descriptor");
  std::vector<int> watched = client->facts_.descriptors;
  watched.push_back(client->timer_.get());
  for (const int descriptor : watched) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (::epoll_ctl(client->epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return fail_errno(errno, format("watch the connection to {}", client->facts_.address));
    }
  }
  client->heard_ = client->said_ = client->looked_ = system_clock().now();
  if (!client->connection_->is_open()) client->asked_ = client->heard_;
  client->kick();
  return client;
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
  if (requests_.empty()) heard_ = system_clock().now();  // The server had nothing to say until now.
  say(Connection::Say::fetch, number, encode(request));
  requests_.try_emplace(number, facts_.rules, std::move(request), sink);
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
  if (facts_.answers_cancels) draining_.insert(number);
  say(Connection::Say::cancel, number);
  request.ending = std::move(status);
}

void Client::say(Connection::Say what, std::uint64_t request, Bytes data) {
  if (connection_ == nullptr) return;
  said_ = system_clock().now();
  connection_->send(what, request, data);
}

void Client::heard() {
  heard_ = system_clock().now();
  asked_.reset();
}

void Client::break_off(Error why) {
  if (!broken_) broken_ = std::move(why);
}

void Client::take_chunk(std::uint64_t request, const Chunk& chunk, Bytes data) {
  Request* const found = running(request);
  if (found == nullptr) return;
  const auto memory = found->reception.place(chunk, data.size());
  if (!memory) return settle(*found, fail(memory.error()));
  if (found->ending) return;  // The sink cancelled it.
  std::memcpy(memory->data(), data.data(), data.size());
  found->reception.arrived(chunk, data.size());
  settle(*found, {});
}

std::optional<MutableBytes> Client::place(std::uint64_t request, const Chunk& chunk, std::uint64_t length) {
  Request* const found = running(request);
  if (found == nullptr) return std::nullopt;
  const auto memory = found->reception.place(chunk, length);
  if (!memory) {
    settle(*found, fail(memory.error()));
    return std::nullopt;
  }
  ++found->receiving;
  return *memory;
}

void Client::arrived(std::uint64_t request, const Chunk& chunk, std::uint64_t length, const Status& received) {
  Request& found = requests_.at(request);
  --found.receiving;
  if (found.ending) return;
  if (received) found.reception.arrived(chunk, length);
  settle(found, received);
}

void Client::take_batch(std::uint64_t request, std::size_t answers, Bytes data) {
  if (Request* const found = running(request)) settle(*found, found->reception.take_batch(answers, data));
}

void Client::lost(std::uint64_t request, Error why) {
  if (Request* const found = running(request)) settle(*found, fail(std::move(why)));
}

void Client::settle(Request& request, const Status& taken) {
  if (request.ending) return;  // The sink cancelled it.
  if (taken) {
    if (request.reception.is_complete()) request.ending = Status();
    return;
  }
  if (request.reception.was_lied_to()) break_off(taken.error());
  give_up(request, taken);
}

void Client::take_ended(std::uint64_t request, std::uint32_t code, Bytes text) {
  draining_.erase(request);
  Request* const found = running(request);
  if (found == nullptr || code > static_cast<std::uint32_t>(Code::io_error)) return;
  const std::size_t length = std::min(text.size(), kErrorTextBytesMax);
  found->ending =
      fail(static_cast<Code>(code), shown(std::string_view(reinterpret_cast<const char*>(text.data()), length)));
}

Result<bool> Client::progress(std::chrono::microseconds at_most) {
  if (dead_) return fail(*dead_);
  std::uint64_t expirations = 0;
  [[maybe_unused]] const auto got = ::read(timer_.get(), &expirations, sizeof expirations);
  Time now = system_clock().now();
  const Time deadline = now + std::max(at_most, std::chrono::microseconds(0));
  // While nobody called this, nothing could come: what it was silent for then is not the server's doing. Twice, since
  // the timer calls it once in that time.
  if (asked_ && now - looked_ > 2 * kPingAfter) asked_ = now;
  bool asleep = false;
  int idle = 0;
  do {
    const Result<bool> received = connection_->receive(*this, deadline);
    const bool did = tell_endings() || received.value_or(false);
    now = system_clock().now();
    looked_ = now;
    if (!received) break_off(received.error());
    if (broken_) break;
    if (did) {
      idle = 0;
      continue;
    }
    if (!requests_.empty() && ++idle < facts_.idle_rounds) continue;
    const Result<bool> armed = connection_->arm();
    if (!armed) break_off(armed.error());
    asleep = armed.value_or(true);
  } while (!asleep && now < deadline);
  if (!broken_) check_silence(now);
  if (broken_) {
    die(std::move(*broken_));
    return fail(*dead_);
  }
  if (asleep) set_timer(now);
  return !asleep;
}

bool Client::tell_endings() {
  bool did = false;
  for (auto at = requests_.begin(); at != requests_.end();) {
    if (!at->second.ending || at->second.receiving != 0) {
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

void Client::check_silence(Time now) {
  if (requests_.empty() && connection_->is_open()) return asked_.reset();
  // Said also while answers come: that is how the server knows that they are taken.
  if (now - said_ >= kPingAfter) say(Connection::Say::ping);
  if (!asked_) {
    if (now - heard_ < kPingAfter) return;
    asked_ = now;
    if (said_ < now) say(Connection::Say::ping);
  } else if (now - *asked_ >= kPeerSilence) {
    break_off(Error(Code::unavailable,
                    format("the connection to {}: nothing came for {} ms", facts_.address, kPeerSilence.count())));
  }
}

void Client::set_timer(Time now) {
  itimerspec spec{};
  if (asked_ || !requests_.empty()) {
    const Time due = std::min(said_ + kPingAfter, asked_ ? *asked_ + kPeerSilence : heard_ + kPingAfter);
    const std::int64_t ns = std::max(due - now, Duration(std::chrono::milliseconds(1))).count();
    spec.it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  }
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Client::kick() {
  const itimerspec spec{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 1}};
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Client::die(Error why) {
  dead_ = std::move(why);
  for (const int descriptor : facts_.descriptors) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
  connection_.reset();
  for (auto& [number, request] : std::exchange(requests_, {})) {
    bytes_received_ += request.reception.bytes();
    request.reception.sink().on_request_done(number, request.ending ? *request.ending : fail(*dead_));
  }
  kick();  // The descriptor stays readable: whoever polls it learns of the end.
}

std::uint64_t Client::bytes_received() const {
  std::uint64_t bytes = bytes_received_;
  for (const auto& [number, request] : requests_) bytes += request.reception.bytes();
  return bytes;
}

Status Client::register_memory(Bytes memory) {
  if (connection_ == nullptr) return fail(*dead_);
  return connection_->register_memory(memory);
}

}  // namespace freshet::channel
