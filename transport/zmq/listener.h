// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Watches a listening socket: logs strangers whose handshake fails, and puts out who comes when too many are inside,
/// who is another user of this host where only this one is admitted, and who sends more ahead than is received. ZeroMQ
/// has no limit on connections, nor on messages that never end, and a process without descriptors or memory left cannot
/// even be told to stop.

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/security/socket_owner.h"
#include "transport/zmq/arrivals.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/sockets.h"

namespace freshet {

/// The socket's thread.
class Listener {
 public:
  /// `socket` must outlive it and was bound with a monitor.
  /// `on_end`, if any, is told of each connection that ended, by its descriptor, before that can be another's.
  explicit Listener(ZmqSocket& socket, Neighbours neighbours, ArrivalLimits limits = {},
                    std::function<void(int descriptor)> on_end = {});

  /// What its owner's loop has to poll beside the socket; tend() is due when any of it is readable.
  void watch(std::vector<zmq::pollitem_t>& items);
  /// Takes what the monitor reports, and looks at what came. Called when watch() says so, and before anything is done
  /// with a message's descriptor: whoever sent it may have come, or another may have gone, since the last time. ZeroMQ
  /// reports both before the message can be received, or the descriptor be another's.
  void tend(Time now);
  /// The same, and ends the connections whose noted key `keys`, which may be null, does not allow any more.
  void tend(Time now, const Authenticator* keys);
  /// A message was received whole from it, of so many bytes: freshet::receive() tells.
  void took(int descriptor, std::uint64_t bytes) { taken_[descriptor] += bytes; }
  std::size_t connections() const { return peers_.size(); }
  /// Whether what came by that connection may be heard; if not, it is ended. Ask after tend(), for each message.
  bool admits(int descriptor);
  /// The socket was just found to have no more messages: none of a connection that ended is left.
  void on_drained() { suspects_.clear(); }
  /// The key of whoever sends a message by that connection: what tend() looks at. One key has at most
  /// key_connections_max(): its next one is ended.
  void note_key(int descriptor, std::string_view key);
  /// Ends a connection by force, if there is one; its end is reported as any other.
  void put_out(int descriptor);
  /// Who is at its other end, for people.
  std::string name_of(int descriptor) const;

  /// How many connections a listener lets stand, by the descriptors that this process may have.
  static std::size_t connections_max();
  /// How many of so many one key may have: half, or most of them while no other key has any.
  static std::size_t key_connections_max(std::size_t connections_max, bool is_alone);

 private:
  struct Peer {
    sockaddr_storage address{};
    socklen_t bytes = 0;
    std::string key;  ///< Empty until it has sent something.
    bool admitted = false;
  };
  void take(const SocketMonitor::Event& event, Time now);
  void take_in(int descriptor, Time now);
  Status check(int descriptor) const;
  static Peer peer_of(int descriptor);
  static std::string name_of(const Peer& peer);

  ZmqSocket& socket_;
  const Neighbours neighbours_;
  const std::function<void(int descriptor)> on_end_;
  const std::size_t connections_max_ = connections_max();
  std::map<int, Peer> peers_;  ///< By descriptor.
  Arrivals arrivals_;
  /// What was received since the last tend(), by descriptor: whose that is by now, the monitor has to say first. What
  /// one connection left may be counted for the next; that is never more than may wait.
  std::map<int, std::uint64_t> taken_;
  /// Descriptors that came in this round of tend(). Whose they are was asked when they may have been closed already,
  /// and been another's; if their end is reported in the same round, that may have been so.
  std::set<int> fresh_;
  /// Descriptors of such connections, and of those that were not admitted. Messages of theirs may still wait, and would
  /// pass for the next owner's; that one is only ended when a message comes before the socket was found empty.
  std::set<int> suspects_;
  std::uint64_t list_changes_ = 0;  ///< Of the allow-list, that were looked at.
  std::string failure_;             ///< Of the handshake whose connection ends next.
  Rejects rejects_{"listener"};
};

/// Whether the sender of a message may be heard, by its key where the socket has `keys`, else by its connection where
/// it has a `listener`; each may be null. A connection that may not is ended.
bool is_admitted(const zmq::message_t& message, const Authenticator* keys, Listener* listener);

}  // namespace freshet
