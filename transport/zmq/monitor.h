// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What happens to the connections of a ZeroMQ socket, as ZeroMQ reports it beside the socket. For a socket that
/// connects without keys, it also looks at who is at the other end: whoever listens where a publisher was, or will be,
/// may be another user of this host.

#include <cstdint>
#include <deque>
#include <optional>
#include <zmq.hpp>

#include "core/base/result.h"
#include "transport/security/socket_owner.h"

namespace freshet {

/// One thread at a time, the socket's. Its loop must take what comes: a monitor that is full stops the I/O thread.
///
/// REQUIRES: it ends before its socket does (declare it after the socket). Therefore it cannot be assigned to.
class SocketMonitor {
 public:
  /// Of `events`, a set of ZMQ_EVENT_*. unavailable when the context has no socket left. `believed`: whose words a
  /// connecting socket takes; all users' for a socket that listens (Listener looks at its peers) or has keys.
  static Result<SocketMonitor> open(zmq::context_t& context, zmq::socket_t& socket, int events,
                                    Neighbours believed = Neighbours::all);
  SocketMonitor(SocketMonitor&& other) noexcept;
  SocketMonitor& operator=(SocketMonitor&&) = delete;
  ~SocketMonitor();

  struct Event {
    std::uint16_t kind = 0;   ///< A ZMQ_EVENT_*.
    std::uint32_t value = 0;  ///< A descriptor, an errno or a protocol error, as the kind says.
    /// Why the other end is not believed (kind kDisbelieved). No message of its connection passes admits().
    std::optional<Error> why = std::nullopt;
  };
  static constexpr std::uint16_t kDisbelieved = 0;
  std::optional<Event> take();
  /// Some were taken from ZeroMQ already, so that handle() does not tell of them.
  bool has_more() const { return !heard_.empty(); }
  void* handle() { return reports_.handle(); }

  /// Whether a message of the connecting socket came from a peer that is believed. Ask for each, as soon as it is
  /// received.
  bool admits(const zmq::message_t& message);
  /// The socket was just found to have no more messages: none of a connection that ended is left.
  void on_drained() { has_leftovers_ = false; }

 private:
  SocketMonitor(void* watched, zmq::socket_t reports, Neighbours believed)
      : watched_(watched), reports_(std::move(reports)), believed_(believed) {}
  void hear_all();
  void note(const Event& event);
  void judge();
  void hang_up(const ConnectionEnds& ends) const;

  void* watched_;
  zmq::socket_t reports_;
  Neighbours believed_;
  std::deque<Event> heard_;
  // The connection that there is now, as far as heard.
  int descriptor_ = -1;
  std::uint64_t ends_ = 0;        ///< How many ended.
  bool to_judge_ = false;         ///< It has shaken hands, and was not looked at.
  std::optional<bool> admitted_;  ///< Nothing: it was not looked at. An admitted one's last messages outlive it.
  /// A connection that was not admitted has ended. Its messages may still wait, and its descriptor be the next one's.
  bool has_leftovers_ = false;
};

}  // namespace freshet
