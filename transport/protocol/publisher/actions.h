// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The actions that the publisher's machine asks of its shell.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/arena/arena.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

/// Whom a message came from, as the shell knows it (a ROUTER identity); a reply goes to the same.
using Peer = std::string;

namespace action {
struct Send {
  Peer peer;
  Message message;
};
/// To these, who said Hello and are not silent: one that is silent may be stopped, and hears with its next Pong.
struct Announce {
  Announcement announcement;
  std::vector<Peer> peers;
};
/// These segments may be written again.
struct Free {
  std::vector<SegmentIndex> segments;
};
/// The session ended: its door, if still open, is to be closed.
struct CloseDoor {
  SessionId session = 0;
};
/// From now on that session may fetch that version under this lease. Comes before the Grant that names it is sent.
struct OpenLease {
  LeaseId lease = 0;
  SessionId session = 0;
  VersionNumber number = 0;
  bool coming = false;  ///< Of the version that is coming (on_coming).
};
/// No fetch is to be begun under it any more; answered with on_lease_closed once nothing of it is read. `by_force`: the
/// session is gone, so that whoever still fetches for it is to be cut off; may follow one without force.
struct CloseLease {
  LeaseId lease = 0;
  SessionId session = 0;
  bool by_force = false;
};
/// To be asked of the directory; answered with on_current_swapped. One at a time.
struct SwapCurrent {
  Current expected;
  Current desired;
};
}  // namespace action
using PublisherAction = std::variant<action::Send, action::Announce, action::Free, action::CloseDoor, action::OpenLease,
                                     action::CloseLease, action::SwapCurrent>;

/// Where the machine's parts leave what is to be done, in its order.
class PublisherActions {
 public:
  void add(PublisherAction action) { actions_.push_back(std::move(action)); }
  void send(const Peer& peer, Message message) { add(action::Send{.peer = peer, .message = std::move(message)}); }
  std::vector<PublisherAction> take() { return std::exchange(actions_, {}); }

 private:
  std::vector<PublisherAction> actions_;
};

}  // namespace freshet::protocol
