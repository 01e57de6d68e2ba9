#pragma once

/// The subscriber's half of the control protocol. Handed events and a time, returns actions; opens no socket, reads no
/// clock, starts no thread. Owned by its loop thread (or by the simulator).
///
/// Life: greeting (Hello, again after a pause until Welcome) -> knocking (open the door, receive slabs) -> following
/// (Want when news or a Pong says that there is more, one Want at a time). A closed door leads back to greeting, with a
/// new session. A publisher that is merely silent keeps the session: it may be stopped, its door is still open, and its
/// death closes the door. UnknownSession through an open door means that the control connection broke and came back:
/// the session is claimed again with the door's token, and given up for a new one when that takes too long.
///
/// Rules:
///   - A door stays open while anything granted through it may still be read in this process: the publisher takes a
///     closed door for "nobody reads". A session that was given up is drained: LeaveDoor comes with its last unpin.
///   - A version counts as held from the moment its Grant is accepted, before the Install is handed out, until
///     on_unpinned, or until its Install failed.
///   - A Grant that is not the answer to the Want of the moment, or that was overtaken by a later one, is given back by
///     the next Held; it is never installed.
///   - A version that was refused for what it is (corrupt, of a shape that cannot be served) is not asked for again.
///     One that could not be had now (a lost slab) is, after a pause that grows.
///   - Versions installed stay served through everything; their mappings live until they are unpinned.
///
/// A Hello in the actions means that no publisher is known to be there: the shell looks its address up anew.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
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
/// Nothing of that session is read any more, or it never came about: close its door, or stop connecting to it.
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
    std::uint64_t session_seed = 0;          ///< Sessions are derived from it; random in a shell.
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
  /// Also when it could not be opened.
  void on_door_closed(SessionId session, Time now);

  /// The shell finished an Install: the version is served, or was refused with a reason (a hostile manifest, a lost
  /// slab).
  void on_installed(SessionId session, VersionNumber number, Status status, Time now);
  /// The shell can decode manifests of that architecture; the last few are named in every Want.
  void on_architecture_known(const Digest& digest);
  /// Nobody in this process reads that version of that session any more, nor will: it is not the served one either.
  void on_unpinned(SessionId session, VersionNumber number, Time now);
  /// For `every`: the application took the delivered version, so the next may come.
  void on_taken(VersionNumber number, Time now);
  void on_stop(Time now);  ///< Says Bye.

  void on_tick(Time now);
  Time next_tick() const;

  std::vector<SubscriberAction> take_actions();

  bool connected() const { return connected_; }  ///< A publisher answered within `silent_after`.
  VersionNumber newest_known() const { return newest_known_; }
  VersionNumber serving() const { return serving_; }
  std::uint64_t gaps() const { return gaps_; }
  const std::string& last_refusal() const { return last_refusal_; }  ///< What the publisher last said no with.

 private:
  enum class Phase : std::uint8_t { idle, greeting, knocking, following, stopped };

  /// What this process holds through one session's door.
  struct Session {
    bool door_open = false;
    std::uint64_t grants_seen = 0;
    std::set<VersionNumber> held;
    std::uint64_t door_token = 0;  ///< Set when the door opens.
    bool claimed = false;          ///< Since the last heartbeat; of a drained session.
  };
  /// The Want that has no answer yet.
  struct Outstanding {
    Want want;
    Time retry_at;
    Duration pause{};
  };
  /// The Install that has no answer yet.
  struct Installing {
    SessionId session = 0;
    VersionNumber number = 0;
    std::uint64_t gap_before = 0;
  };

  void on(const Welcome& welcome, Time now);
  void on(Grant grant, Time now);
  void on(const Refusal& refusal, Time now);
  void on(const Pong& pong, Time now);
  void on(const UnknownSession& unknown, Time now);
  void on_want_refused(const Refusal& refusal, Time now);
  void on_install_failed(const Installing& failed, Code code, Time now);

  void greet_anew(Time now);
  void say_hello(Time now);
  void leave_current_session();
  void claim_session(Time now);
  void claim_drained(SessionId id);
  Hello hello_for(SessionId session, std::uint64_t door_token) const;
  void heard(Time now);
  void beat(Time now);
  void consider_want(Time now);
  bool has_cause_to_ask() const;
  void repeat_want(Time now);
  bool is_answer(const Grant& grant) const;
  void drop(SessionId session, VersionNumber number);
  void send_held(SessionId id, const Session& session);
  void send(Message message);

  Options options_;
  Phase phase_ = Phase::idle;
  SessionId current_ = 0;
  std::uint64_t sessions_made_ = 0;
  std::uint64_t incarnation_ = 0;
  std::map<SessionId, Session> sessions_;  ///< The current one, and those that are drained.

  VersionNumber position_ = 0;  ///< Every version up to it was installed, refused or skipped.
  VersionNumber serving_ = 0;
  VersionNumber highest_seen_ = 0;
  VersionNumber newest_known_ = 0;
  VersionNumber hopeless_up_to_ = 0;  ///< The publisher said that asking for these cannot help.
  std::uint64_t gaps_ = 0;

  std::uint64_t last_request_ = 0;
  std::optional<Outstanding> want_;
  std::optional<Installing> installing_;
  std::set<VersionNumber> delivered_;  ///< `every`: not yet taken by the application.
  std::vector<Digest> architectures_;  ///< The latest last.

  std::uint64_t door_token_ = 0;
  std::optional<Time> claim_until_;  ///< The publisher is being asked to know the session again.
  Time hello_at_{};
  Time knock_until_{};
  Time beat_at_{};
  Time want_not_before_{};
  Time last_heard_{};
  Duration install_pause_{};
  bool connected_ = false;
  std::string last_refusal_;
  std::vector<SubscriberAction> actions_;
};

}  // namespace freshet::protocol
