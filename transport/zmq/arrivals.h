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
  /// Where the limits above are so large that 32 times as much is too much: by how much this process's memory may grow
  /// while more than kAllBytesSmall wait, beside twice the bytes that came meanwhile. 0: by any. The process may have
  /// grown for other reasons, so it counts only while half messages have kAllBytesSmall too: connections of which so
  /// long nothing was received whole that it is not for want of a turn. An upload's chunks are received all the while.
  std::uint64_t growth_bytes = 0;
  static constexpr std::uint64_t kAllBytesSmall = std::uint64_t{4} << 20;
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
  /// Of this process, in memory now; 0 where the system does not tell.
  static std::uint64_t resident_bytes();
  /// Whose connections are to be ended: of several that are too much together, the one with the most. They are told
  /// again until they are removed.
  std::vector<Excess> look();
  std::uint64_t waiting(int connection) const;

 private:
  struct Connection {
    std::uint64_t arrived = 0;  ///< When it was last measured.
    std::uint64_t taken = 0;
    bool stirred = false;  ///< Something came since it was measured.
    int looks = 0;         ///< At it, in a row, when something waited and nothing had been received since the last.
    std::uint64_t waiting() const { return arrived > taken ? arrived - taken : 0; }
  };
  bool is_due();
  void look_later();
  void watch(int connection, int operation) const;
  static void measure(int descriptor, Connection& connection);
  bool grows_too_much(std::uint64_t waiting, std::uint64_t halves);

  const ArrivalLimits limits_;
  const FileDescriptor epoll_;
  const FileDescriptor timer_;
  bool timer_runs_ = false;
  std::uint64_t taken_ = 0;  ///< From all connections.
  /// When little waited last.
  std::uint64_t resident_then_ = 0;
  std::uint64_t taken_then_ = 0;
  bool to_trim_ = false;
  std::map<int, Connection> connections_;
};

}  // namespace freshet
