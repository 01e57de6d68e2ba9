// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Counts what came by the connections of a ZeroMQ socket and was not received yet. ZeroMQ bounds one part of a
/// message, but neither how many parts one has nor, without RCVHWM (transport/zmq/sockets.h tells why), how many
/// messages wait. So the kernel is asked: it knows how many bytes ZeroMQ has read from each connection, and who
/// receives knows how many bytes were whole messages. The difference is what ZeroMQ keeps in memory for that
/// connection.

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/file_descriptor.h"

namespace freshet {

/// In bytes as they came. A part of a message takes two bytes or more on the wire and 64 in memory beside its own, so
/// a message that is cut into the smallest parts takes up to 32 times as much.
struct ArrivalLimits {
  std::uint64_t connection_bytes = std::uint64_t{1} << 20;
  std::uint64_t all_bytes = std::uint64_t{8} << 20;  ///< Of all connections together.
};

/// One thread at a time. Looks when something came, and then again each 10 ms for as long as something comes.
class Arrivals {
 public:
  explicit Arrivals(ArrivalLimits limits);

  /// Readable when look() has something to do; -1 where the system had no descriptor left, and look() does it each
  /// time.
  int descriptor() const { return epoll_.get(); }
  /// A connection that was accepted, and its end.
  void add(int connection);
  void remove(int connection);
  /// A whole message of so many bytes was received from it; more than it had on the wire does no harm.
  void took(int connection, std::uint64_t bytes);

  struct Excess {
    int connection = -1;
    std::uint64_t bytes = 0;
  };
  /// Whose connections are to be ended. They are told again until they are removed.
  std::vector<Excess> look();
  std::uint64_t waiting(int connection) const;

 private:
  struct Connection {
    std::uint64_t arrived = 0;  ///< When it was last measured.
    std::uint64_t taken = 0;
    bool stirred = false;  ///< Something came since it was measured.
    std::uint64_t waiting() const { return arrived > taken ? arrived - taken : 0; }
  };
  bool is_due();
  void look_later();
  void watch(int connection, int operation) const;
  static void measure(int descriptor, Connection& connection);

  const ArrivalLimits limits_;
  const FileDescriptor epoll_;
  const FileDescriptor timer_;
  bool timer_runs_ = false;
  std::map<int, Connection> connections_;
};

}  // namespace freshet
