#pragma once

/// Watches a listening socket: logs strangers whose handshake fails, and puts out who comes when too many are inside.
/// ZeroMQ has no limit on connections, and a process without descriptors left cannot even be told to stop.

#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <string>

#include "core/clock.h"
#include "core/result.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/sockets.h"

namespace freshet {

/// The socket's thread.
class Listener {
 public:
  /// `socket` must outlive it and was bound with a monitor.
  explicit Listener(ZmqSocket& socket);

  /// Takes what the monitor reports. Called when handle() is readable.
  void tend(Time now);
  void* handle() { return socket_.monitor->handle(); }
  std::size_t connections() const { return peers_.size(); }

  /// How many connections a listener lets stand, by the descriptors that this process may have.
  static std::size_t connections_max();

 private:
  struct Peer {
    sockaddr_storage address{};
    socklen_t bytes = 0;
  };
  void take(const SocketMonitor::Event& event, Time now);
  void admit(int descriptor, Time now);
  static Peer peer_of(int descriptor);
  static std::string name_of(const Peer& peer);

  ZmqSocket& socket_;
  const std::size_t connections_max_ = connections_max();
  std::map<int, Peer> peers_;  ///< By descriptor.
  std::string failure_;        ///< Of the handshake whose connection ends next.
  Rejects rejects_{"listener"};
};

}  // namespace freshet
