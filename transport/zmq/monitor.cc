// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/monitor.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "transport/zmq/sockets.h"

namespace freshet {
namespace {
constexpr std::size_t kEventBytes = sizeof(std::uint16_t) + sizeof(std::uint32_t);
constexpr std::size_t kEventParts = 2;
}  // namespace

Result<SocketMonitor> SocketMonitor::open(zmq::context_t& context, zmq::socket_t& socket, int events) {
  static std::atomic<std::uint64_t> monitors{0};
  const std::string endpoint = format("inproc://freshet-monitor-{}", monitors++);
  if (::zmq_socket_monitor(socket.handle(), endpoint.c_str(), events) != 0) {
    return fail(Code::unavailable, format("watch a socket: {}", ::zmq_strerror(::zmq_errno())));
  }
  try {
    zmq::socket_t reports(context, zmq::socket_type::pair);
    reports.set(zmq::sockopt::linger, 0);
    reports.connect(endpoint);
    return SocketMonitor(socket.handle(), std::move(reports));
  } catch (const zmq::error_t& error) {
    ::zmq_socket_monitor(socket.handle(), nullptr, 0);
    return fail(Code::unavailable, format("watch a socket: {}", error.what()));
  }
}

SocketMonitor::SocketMonitor(SocketMonitor&& other) noexcept
    : watched_(std::exchange(other.watched_, nullptr)), reports_(std::move(other.reports_)) {}

SocketMonitor::~SocketMonitor() {
  // The reporting end first: with nobody to read it, its next report would wait for ever.
  if (watched_ != nullptr) ::zmq_socket_monitor(watched_, nullptr, 0);
}

std::optional<SocketMonitor::Event> SocketMonitor::take() {
  const auto parts = receive(reports_, kEventParts);
  if (!parts || parts->size() != kEventParts || (*parts)[0].size() != kEventBytes) return std::nullopt;
  const auto* const bytes = static_cast<const char*>((*parts)[0].data());
  Event event;
  std::memcpy(&event.kind, bytes, sizeof event.kind);
  std::memcpy(&event.value, bytes + sizeof event.kind, sizeof event.value);
  return event;
}

}  // namespace freshet
