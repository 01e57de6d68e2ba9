// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The actions that the subscriber's machine asks of its shell.

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

namespace action {
struct SendControl {
  Message message;
};
/// Connect the door, and show it session and token.
struct OpenDoor {
  SessionId session = 0;
  std::string door;
  std::uint64_t token = 0;
};
/// Nothing of that session is read any more, or it never came about: close its door, or stop connecting to it.
struct LeaveDoor {
  SessionId session = 0;
};
/// Check, map (or, with a lease, fetch into memory of one's own and prove), and swap in; answer with on_installed. A
/// fetch whose channel dies or is closed is answered `unavailable`; `corrupt` says that bytes failed their proof.
/// `stage`: everything but the swap. It is kept beside the served one until SwapStaged or DropStaged.
struct Install {
  Grant grant;
  Time granted_at;
  bool stage = false;
};
/// The Install that is under way must not be finished: something else was decided. Nothing of it is read or served
/// after this, and it is not answered.
struct Abandon {
  SessionId session = 0;
  VersionNumber number = 0;
};
/// Swap in what was staged: an exchange of pointers, which cannot fail.
struct SwapStaged {
  SessionId session = 0;
  VersionNumber number = 0;
  std::uint64_t epoch = 0;
};
/// The staged version is not wanted any more: answer with on_unpinned once nobody in this process reads it.
struct DropStaged {
  SessionId session = 0;
  VersionNumber number = 0;
};
/// Connect to that data channel; answer with on_channel_open or on_channel_closed. `why` is for people.
struct OpenChannel {
  SessionId session = 0;
  ChannelOffer offer;
  std::string why;
};
/// Close the session's data channel, or stop connecting to it; nothing more is said of it.
struct CloseChannel {
  SessionId session = 0;
};
}  // namespace action
using SubscriberAction =
    std::variant<action::SendControl, action::OpenDoor, action::LeaveDoor, action::Install, action::OpenChannel,
                 action::CloseChannel, action::Abandon, action::SwapStaged, action::DropStaged>;

/// Where the machine's parts leave what is to be done, in its order.
class SubscriberActions {
 public:
  void add(SubscriberAction action) { actions_.push_back(std::move(action)); }
  void send(Message message) { add(action::SendControl{std::move(message)}); }
  std::vector<SubscriberAction> take() { return std::exchange(actions_, {}); }

 private:
  std::vector<SubscriberAction> actions_;
};

}  // namespace freshet::protocol
