#pragma once

/// The subscriber's half of the control protocol. Handed events and a time, returns actions; opens no socket, reads no
/// clock, starts no thread. Owned by its loop thread (or by the simulator).
///
/// Life: greeting (Hello, again after a pause until Welcome) -> knocking (open the door, receive slabs) -> following (Want
/// when news or a Pong says that there is more, one Want at a time). A closed door, another incarnation, UnknownSession or
/// a silent publisher lead back to greeting, with a new session; versions already installed stay served, and their
/// mappings live until they are unpinned.

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/clock.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

namespace action {
struct SendControl {
  Message message;
};
/// Follow this PUB socket (instead of any before it), then connect the door and show it session and token.
struct OpenDoor {
  SessionId session = 0;
  std::string announcements;
  std::string door;
  std::uint64_t token = 0;
};
struct LeaveDoor {
  SessionId session = 0;
};
/// Check, map and swap in; answer with on_installed.
struct Install {
  Grant grant;
  Time granted_at;
};
}  // namespace action
using SubscriberAction = std::variant<action::SendControl, action::OpenDoor, action::LeaveDoor, action::Install>;

class SubscriberMachine {
 public:
  struct Options {
    std::string model;
    Mode mode = Mode::latest;
    std::string label;
    std::int32_t pid = 0;
    std::string host;
    VersionNumber after = 0;
    std::uint64_t session_seed = 0;        ///< Sessions are derived from it; random in a shell.
    std::size_t installs_in_flight_max = 1;  ///< For `every`: delivered but not yet taken by the application, at most.
    Duration retry_after = std::chrono::milliseconds(200);
    Duration heartbeat = std::chrono::milliseconds(250);
    Duration silent_after = std::chrono::milliseconds(1000);
  };
  explicit SubscriberMachine(Options options);

  void on_start(Time now);
  void on_message(Message message, Time now);
  void on_announcement(const Announcement& announcement, Time now);
  void on_door_open(SessionId session, Time now);
  void on_door_closed(SessionId session, Time now);

  /// The shell finished an Install: the version is served, or was refused with a reason (a hostile manifest, a lost slab).
  void on_installed(SessionId session, VersionNumber number, Status status, Time now);
  /// Nobody in this process reads that version of that session any more.
  void on_unpinned(SessionId session, VersionNumber number, Time now);
  /// For `every`: the application took the delivered version, so the next may come.
  void on_taken(VersionNumber number, Time now);
  void on_stop(Time now);  ///< Says Bye.

  void on_tick(Time now);
  Time next_tick() const;

  std::vector<SubscriberAction> take_actions();

  bool connected() const;               ///< A publisher answered within `silent_after`.
  VersionNumber newest_known() const;
  VersionNumber serving() const;
  std::uint64_t gaps() const;

 private:
  // The implementer's to design.
  Options options_;
};

}  // namespace freshet::protocol
