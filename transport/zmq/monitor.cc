// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/monitor.h"

#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {
constexpr std::size_t kEventBytes = sizeof(std::uint16_t) + sizeof(std::uint32_t);
constexpr std::size_t kEventParts = 2;
/// What tells whose connection a message came by.
constexpr int kConnectionEvents =
    ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED;
}  // namespace

Result<SocketMonitor> SocketMonitor::open(zmq::context_t& context, zmq::socket_t& socket, int events,
                                          Neighbours believed) {
  if (believed == Neighbours::same_user) events |= kConnectionEvents;
  static std::atomic<std::uint64_t> monitors{0};
  const std::string endpoint = format("inproc://freshet-monitor-{}", monitors++);
  if (::zmq_socket_monitor(socket.handle(), endpoint.c_str(), events) != 0) {
    return fail(Code::unavailable, format("watch a socket: {}", ::zmq_strerror(::zmq_errno())));
  }
  try {
    zmq::socket_t reports(context, zmq::socket_type::pair);
    reports.set(zmq::sockopt::linger, 0);
    reports.connect(endpoint);
    return SocketMonitor(socket.handle(), std::move(reports), believed);
  } catch (const zmq::error_t& error) {
    ::zmq_socket_monitor(socket.handle(), nullptr, 0);
    return fail(Code::unavailable, format("watch a socket: {}", error.what()));
  }
}

SocketMonitor::SocketMonitor(SocketMonitor&& other) noexcept
    : watched_(std::exchange(other.watched_, nullptr)),
      reports_(std::move(other.reports_)),
      believed_(other.believed_),
      heard_(std::move(other.heard_)),
      descriptor_(other.descriptor_),
      ends_(other.ends_),
      to_judge_(other.to_judge_),
      admitted_(other.admitted_),
      has_leftovers_(other.has_leftovers_) {}

SocketMonitor::~SocketMonitor() {
  // The reporting end first: with nobody to read it, its next report would wait for ever.
  if (watched_ != nullptr) ::zmq_socket_monitor(watched_, nullptr, 0);
}

std::optional<SocketMonitor::Event> SocketMonitor::take() {
  if (heard_.empty()) {
    hear_all();
    if (to_judge_) judge();
  }
  if (heard_.empty()) return std::nullopt;
  Event event = std::move(heard_.front());
  heard_.pop_front();
  return event;
}

void SocketMonitor::hear_all() {
  while (const auto parts = receive(reports_, kEventParts)) {
    if (parts->size() != kEventParts || (*parts)[0].size() != kEventBytes) continue;
    const auto* const bytes = static_cast<const char*>((*parts)[0].data());
    Event event;
    std::memcpy(&event.kind, bytes, sizeof event.kind);
    std::memcpy(&event.value, bytes + sizeof event.kind, sizeof event.value);
    if (believed_ == Neighbours::same_user) note(event);
    heard_.push_back(std::move(event));
  }
}

void SocketMonitor::note(const Event& event) {
  switch (event.kind) {
    case ZMQ_EVENT_CONNECTED:
      descriptor_ = static_cast<int>(event.value);
      admitted_.reset();
      to_judge_ = false;
      break;
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: to_judge_ = true; break;
    case ZMQ_EVENT_DISCONNECTED:
    case ZMQ_EVENT_CLOSED:
      if (static_cast<int>(event.value) != descriptor_) break;  // Of a try that nobody answered.
      ++ends_;
      to_judge_ = false;
      if (admitted_ == true) break;
      has_leftovers_ = true;
      descriptor_ = -1;
      break;
    default: break;
  }
}

/// ZeroMQ tells of an end before it closes the descriptor. So if no end was told after the kernel was asked, the answer
/// was about this connection, and not about another file that has the same descriptor by now.
void SocketMonitor::judge() {
  to_judge_ = false;
  const std::uint64_t ends_before = ends_;
  const Result<ConnectionEnds> ends = ends_of(descriptor_);
  const Status same = check_same_user(descriptor_);
  hear_all();
  if (ends_ != ends_before) return;
  admitted_ = same.has_value();
  if (same) return;
  if (ends) hang_up(*ends);
  const Error& why = same.error();
  const Code code = why.code() == Code::failed_precondition ? why.code() : Code::unavailable;
  heard_.push_back({.kind = kDisbelieved, .value = 0, .why = Error(code, why.message())});
}

/// So that it can fill no memory here. ZeroMQ may have closed the connection by now: another file that has its
/// descriptor is left alone.
void SocketMonitor::hang_up(const ConnectionEnds& ends) const {
  const auto again = ends_of(descriptor_);
  if (again && std::memcmp(&again->own, &ends.own, sizeof ends.own) == 0 &&
      std::memcmp(&again->peer, &ends.peer, sizeof ends.peer) == 0) {
    ::shutdown(descriptor_, SHUT_RDWR);
  }
}

bool SocketMonitor::admits(const zmq::message_t& message) {
  if (believed_ == Neighbours::all) return true;
  hear_all();
  if (has_leftovers_ || descriptor_ < 0 || sender_descriptor(message) != descriptor_) return false;
  // Also a peer of an old protocol, which shakes no hands.
  if (!admitted_) judge();
  return !has_leftovers_ && admitted_ == true && sender_descriptor(message) == descriptor_;
}

}  // namespace freshet
