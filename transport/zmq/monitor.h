// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What happens to the connections of a ZeroMQ socket, as ZeroMQ reports it beside the socket.

#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "core/base/result.h"

namespace freshet {

/// One thread at a time, the socket's. Its loop must take what comes: a monitor that is full stops the I/O thread.
///
/// REQUIRES: it ends before its socket does (declare it after the socket). Therefore it cannot be assigned to.
class SocketMonitor {
 public:
  /// Of `events`, a set of ZMQ_EVENT_*. unavailable when the context has no socket left.
  static Result<SocketMonitor> open(zmq::context_t& context, zmq::socket_t& socket, int events);
  SocketMonitor(SocketMonitor&& other) noexcept;
  SocketMonitor& operator=(SocketMonitor&&) = delete;
  ~SocketMonitor();

  struct Event {
    std::uint16_t kind = 0;   ///< A ZMQ_EVENT_*.
    std::uint32_t value = 0;  ///< A descriptor, an errno or a protocol error, as the kind says.
  };
  std::optional<Event> take();
  void* handle() { return reports_.handle(); }

 private:
  SocketMonitor(void* watched, zmq::socket_t reports) : watched_(watched), reports_(std::move(reports)) {}
  void* watched_;
  zmq::socket_t reports_;
};

}  // namespace freshet
