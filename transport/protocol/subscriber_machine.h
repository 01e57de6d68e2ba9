// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The subscriber's half of the control protocol. Handed events and a time, returns actions; opens no socket, reads no
/// clock, starts no thread. Owned by its loop thread (or by the simulator).
///
/// Life: greeting (Hello, again after a pause until Welcome) -> knocking (open the door, receive slabs), or a data
/// channel is opened instead -> following (Want when news or a Pong says that there is more, one Want at a time). A
/// closed door leads back to greeting, with a new session. A publisher that is merely silent keeps the session: it may
/// be stopped, its door is still open, and its death closes the door. UnknownSession through an open door means that
/// the control connection broke and came back: the session is claimed again with the door's token, and given up for a
/// new one when that takes too long.
///
/// Rules:
///   - A door stays open while anything granted through it may still be read in this process: the publisher takes a
///     closed door for "nobody reads". A session that was given up is drained: LeaveDoor comes with its last unpin.
///   - A `latest` subscriber that has what is current and belongs to no group leaves a Want with the publisher, which
///   is
///     answered when something else is current. News that come first start the clock after which it is repeated.
///   - A version counts as held from the moment its Grant is accepted, before the Install is handed out, until
///     on_unpinned, or until its Install failed.
///   - A Grant that is not the answer to the Want of the moment, or that was overtaken by a later one, is given back by
///     the next Held; it is never installed.
///   - A version that was refused for what it is (corrupt, of a shape that cannot be served) is not asked for again.
///     One that could not be had now (a lost slab) is, after a pause that grows.
///   - Versions installed stay served through everything; their mappings live until they are unpinned.
///   - How versions are read is the selector's choice among what the Welcome offers. A channel that fails, also in the
///     middle of an Install, gives way to the next best in the same session, so that an `every` session's queue stays.
///     A better one is gone back to when its pause is over.
///   - A version that was fetched is the subscriber's own: it is let go of as soon as it is installed. Bytes that were
///     not what the manifest says are fetched once more, by another channel if there is one, before the version is
///     refused.
///   - A `latest` subscriber installs the pair (epoch, number) that the publisher says is current, and pairs only grow:
///     a rollback is an older number under a later epoch. From when a later epoch is heard of, nothing of an earlier
///     one is installed any more.
///   - A member installs by itself only what was activated (a later epoch), or the first version of all. It stages what
///     the publisher names as candidate, and swaps it in when the pair says so.
///   - A publisher that is silent, though its door is open, may be stopped: where the model can be had elsewhere too, a
///     new session is begun there. What came through the door is served on, and the door kept until it is not read.
///   - A session without a door has nothing that tells of the publisher's death but silence: then it is claimed, at
///     whatever address the shell finds now, and given up for a new one when that takes too long.
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

#include "core/base/clock.h"
#include "transport/protocol/channel_selector.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/staging.h"

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
/// What was staged is not wanted any more: answer with on_unpinned once nobody in this process reads it.
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

class SubscriberMachine {
 public:
  struct Options {
    std::string model;
    Mode mode = Mode::latest;
    std::string label;
    std::int32_t pid = 0;
    std::string host;
    VersionNumber after = 0;
    std::uint64_t after_incarnation = 0;     ///< That numbered it; 0: not known.
    std::uint64_t session_seed = 0;          ///< Sessions are derived from it; random in a shell.
    std::size_t installs_in_flight_max = 1;  ///< For `every`: delivered but not yet taken by the application, at most.
    Duration retry_after = std::chrono::milliseconds(200);
    Duration heartbeat = std::chrono::milliseconds(250);
    Duration silent_after = std::chrono::milliseconds(1000);
    ChannelSelector::Options channels;  ///< What this process can use.
    std::string serves;                 ///< Its own control address, if it serves the model again.
    bool staged = false;                ///< A `latest` subscriber that is a member of the group.
  };
  explicit SubscriberMachine(Options options);

  void on_start(Time now);
  void on_message(Message message, Time now);
  void on_announcement(const Announcement& announcement, Time now);
  void on_door_open(SessionId session, Time now);
  /// Also when it could not be opened.
  void on_door_closed(SessionId session, Time now);

  /// The channel of the last OpenChannel is connected; or could not be, or died.
  void on_channel_open(SessionId session, Time now);
  void on_channel_closed(SessionId session, Error why, Time now);
  /// Bytes came through it: a publisher that is busy sending is not silent.
  void on_channel_progress(SessionId session, Time now);

  /// The shell finished an Install: the version is served, or was refused with a reason (a hostile manifest, a lost
  /// slab).
  void on_installed(SessionId session, VersionNumber number, Status status, Time now);
  /// The shell can decode manifests of that architecture; the last few are named in every Want.
  void on_architecture_known(const Digest& digest);
  /// Nobody in this process reads that version of that session any more, nor will: it is not the served one either.
  void on_unpinned(SessionId session, VersionNumber number, Time now);
  /// A `latest` subscriber's served version is not what its manifest says after all, and was withdrawn by the shell:
  /// whatever is current is asked for anew, also when it is the same.
  void on_refuted(VersionNumber number, Time now);
  /// For `every`: the application took the delivered version, so the next may come.
  void on_taken(VersionNumber number, Time now);
  /// Somebody whom this process serves has seen that number: the publisher is told with the next Hello, and at once
  /// when it is there.
  void on_higher_seen(VersionNumber number, Time now);
  /// The directory says that this is current; only a later epoch is news. A publisher that is silent may have swapped
  /// it, and a version that is staged, or served already, need not wait for its word.
  void on_record(const Current& pair, Time now);
  /// Says Bye. What is held then is read on by snapshots that outlive the subscriber.
  void on_stop(Time now);
  /// Of a relay: under which epochs those who follow it serve, and how many do not follow behind other relays of these.
  /// Told to the publisher with each Ping.
  void set_followers(std::vector<std::uint64_t> epochs, std::uint64_t behind_those) {
    follower_epochs_ = std::move(epochs);
    behind_followers_ = behind_those;
  }
  /// Of a program that puts versions to use itself: which one it has. Told to the publisher with each Ping.
  void applied(VersionNumber number) { applied_ = number; }
  /// Whether the shell knows another place where the model may be had, and turns to it when nobody answers.
  void set_elsewhere(bool elsewhere) { elsewhere_ = elsewhere; }

  /// Gets a version by hand, beside the served one; staging() tells what comes of it. For members.
  Status stage(VersionNumber number, Time now);
  /// The same, for `latest` subscribers that are no members: the version is only looked at, until forget().
  Status bring(VersionNumber number, Time now);
  void forget(VersionNumber number, Time now);
  /// Swaps in what was staged by hand, and says which that is.
  Result<VersionNumber> commit_staged(Time now);
  /// Asks the publisher now whether what is served is current; confirmed_at() tells.
  void probe(Time now);

  void on_tick(Time now);
  Time next_tick() const;

  std::vector<SubscriberAction> take_actions();

  bool connected() const { return connected_; }  ///< A publisher answered within `silent_after`.
  VersionNumber newest_known() const { return newest_known_; }
  VersionNumber serving() const { return serving_; }
  std::uint64_t serving_epoch() const { return serving_epoch_; }  ///< Of a `latest` subscriber.
  const Current& current() const { return known_; }               ///< What the publisher last said is current.
  const Staging& staging() const { return staging_; }
  /// What is served was what is current (for `every`: the newest) at that time, or later.
  std::optional<Time> confirmed_at() const { return confirmed_at_; }
  /// From then on a member does not know any more what was decided; nothing for who is no member.
  std::optional<Time> lapses_at() const;
  std::uint64_t gaps() const { return gaps_; }
  /// `every`: the incarnation with which the publisher's numbers last began anew. 0: they go on after Options::after.
  /// Nothing before the first Welcome.
  std::optional<std::uint64_t> numbers_since() const { return numbers_since_; }
  /// Why what is current is not served here though it is known: nobody who was asked has it. Empty otherwise.
  std::string_view absent_why() const {
    return known_.comes_after(serving_epoch_, serving_) ? std::string_view(absent_why_) : std::string_view();
  }
  const std::string& last_refusal() const { return last_refusal_; }  ///< What the publisher last said no with.
  /// Why none of the channels that the publisher offered last can be used; empty if one can.
  const std::string& channel_refusal() const { return channel_refusal_; }
  /// When the publisher last gave a sign of life; nothing before the first. With newest_known() it bounds how stale the
  /// served version may be.
  std::optional<Time> last_heard() const { return ever_heard_ ? std::optional(last_heard_) : std::nullopt; }
  /// The channel in use or being opened, and why that one; nothing while there is no session.
  const ChannelOffer* channel() const { return channel_ ? &channel_->offer : nullptr; }
  std::string channel_why() const { return channel_ ? channel_->why : std::string(); }
  /// For what the shell measures.
  ChannelSelector& selector() { return selector_; }

 private:
  /// Until who refused a Hello, or offers nothing of use, is asked again.
  static constexpr int kRefusedHelloPauses = 5;
  /// A pause that grows stops at this many times retry_after.
  static constexpr int kPauseGrowthMax = 8;

  enum class Phase : std::uint8_t { idle, greeting, knocking, following, stopped };

  /// What this process holds through one session's door. A version that is installed again while an earlier
  /// installation of it is still read (one that was gone back to) is held twice.
  struct Session {
    bool door_open = false;
    std::uint64_t grants_seen = 0;
    std::map<VersionNumber, std::uint32_t> held;  ///< To how many times.
    std::uint64_t door_token = 0;                 ///< Set when the door opens.
    bool claimed = false;                         ///< Since the last heartbeat; of a drained session.
  };
  /// The Want that has no answer yet.
  struct Outstanding {
    Want want;
    Time retry_at;
    Duration pause{};
    Current known;                 ///< What was known to be current when it was first sent.
    std::uint64_t news_heard = 0;  ///< By then.
  };
  /// The Install that has no answer yet.
  struct Installing {
    SessionId session = 0;
    VersionNumber number = 0;
    std::uint64_t gap_before = 0;
    std::uint64_t epoch = 0;
    bool stage = false;
    ChannelKind channel = ChannelKind::shm;
    bool fetched() const { return channel != ChannelKind::shm; }
  };
  /// How the current session's versions are read.
  struct Channel {
    ChannelOffer offer;
    std::string why;
    Time open_at{};     ///< Not asked for before.
    Time give_up_at{};  ///< Once asked for.
    bool asked = false;
    bool open = false;
    int failures = 0;  ///< Installs that failed in a row.
  };

  void on(const Welcome& welcome, Time now);
  void on(Grant grant, Time now);
  void on(const Refusal& refusal, Time now);
  void on(const Pong& pong, Time now);
  void on(const UnknownSession& unknown, Time now);
  void on_want_refused(const Refusal& refusal, Time now);
  void on_install_failed(const Installing& failed, const Error& error, Time now);
  void give_up_version(const Installing& failed);

  // Channels: subscriber_channels.cc.
  void take_offers(const Welcome& welcome);
  void choose_channel(Time now);
  void open_channel(Time now);
  void close_channel();
  void channel_failed(const std::string& why, Time now);
  void consider_better_channel(Time now);
  bool is_fetching() const { return channel_ && channel_->offer.kind != ChannelKind::shm; }
  bool has_other_channel(Time now) const;
  bool is_fetched_again(const Installing& failed, const Error& error, Time now);
  void count_install_failure(const Error& error, Time now);
  void on_knock_unanswered(Time now);
  void tick_channel(Time now);
  Time next_channel_tick() const;

  // What is current, and staging: subscriber_current.cc.
  void on_current(const Current& pair, Time now);
  void on_new_incarnation(const Current& pair, Time now);
  bool numbers_began_anew(const Welcome& welcome) const;
  void on_candidate(VersionNumber candidate, std::uint64_t turn, Time now);
  void on_answered(const Pong& pong, Time now);
  void on_staging_done(const Installing& done, const Status& status, Time now);
  void follow(Time now);
  void swap_staged(std::uint64_t epoch);
  void abandon_install();
  void unstage(const std::optional<Staging::Ready>& ready);
  void stop_staging_others();
  Status stage_by_hand(VersionNumber number, Time now);
  bool wants_current() const;
  void on_nothing_current(const Refusal& refusal, const Outstanding& refused, Time now);
  void say_staged();

  void greet_anew(Time now);
  void say_hello(Time now);
  void leave_current_session();
  void on_two_publishers(Time now);
  void claim_session(Time now);
  /// Whether something is to be done about a publisher that is silent.
  bool minds_silence() const;
  void go_elsewhere(Time now);
  void claim_drained(SessionId id);
  Hello hello_for(SessionId session, std::uint64_t door_token) const;
  void heard(Time now);
  void beat(Time now);
  std::uint32_t behind() const;
  void consider_want(Time now);
  bool has_cause_to_ask() const;
  bool is_overtaken(const Grant& grant) const;
  void consider_waiting(Time now);
  void expect_grant(Time now);
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

  /// Every version up to it was installed, refused or skipped; for `latest`, every pair up to (position_epoch_,
  /// position_).
  VersionNumber position_ = 0;
  std::uint64_t position_epoch_ = 0;
  std::uint64_t position_incarnation_ = 0;  ///< For `every`: that numbered position_; 0: not known.
  bool owed_all_ = false;                   ///< position_ is where an incarnation begins, and all of it is to come.
  std::optional<std::uint64_t> numbers_since_;
  VersionNumber serving_ = 0;
  std::uint64_t serving_epoch_ = 0;
  Current known_;     ///< `latest`: what the publisher says is current.
  Current hopeless_;  ///< Asking for that pair cannot help.
  /// The publisher has not got what is current: not asked for again before its next news, or this. Meanwhile a
  /// candidate can be staged.
  std::optional<Time> absent_until_;
  Staging staging_;
  std::uint64_t turn_ = 0;  ///< Of the last news of a candidate.
  VersionNumber candidate_ = 0;
  Duration membership_ = kMembershipDefault;
  std::optional<Time> standing_from_;
  std::optional<Time> confirmed_at_;
  std::uint64_t news_heard_ = 0;  ///< Announcements.
  VersionNumber highest_seen_ = 0;
  VersionNumber newest_known_ = 0;
  VersionNumber hopeless_up_to_ = 0;  ///< `every`: the publisher said that asking for these cannot help.
  std::uint64_t gaps_ = 0;
  std::uint64_t given_up_ = 0;  ///< `every`: versions that the next one's gap counts beside what its publisher dropped.

  std::uint64_t last_request_ = 0;
  std::optional<Outstanding> want_;
  /// The Want that the publisher keeps until there is something. Never beside want_ or installing_; always of the
  /// current session, its channel and what we have.
  std::optional<Outstanding> waiting_;
  bool keeps_wants_ = false;  ///< The publisher said so.
  bool may_wait_ = false;     ///< And did not refuse one since the last version came.
  std::optional<Installing> installing_;
  std::set<VersionNumber> delivered_;  ///< `every`: not yet taken by the application.
  std::vector<Digest> architectures_;  ///< The latest last.

  ChannelSelector selector_;
  std::optional<Channel> channel_;    ///< Of the current session, from its Welcome on.
  std::vector<ChannelOffer> offers_;  ///< Of the current session's publisher, the door among them.
  bool same_host_ = false;
  VersionNumber unproved_ = 0;  ///< Fetched once, and not what its manifest says.

  std::uint64_t door_token_ = 0;
  std::optional<Time> claim_until_;  ///< The publisher is being asked to know the session again.
  Time hello_at_{};
  Time knock_until_{};
  Time beat_at_{};
  Time want_not_before_{};
  Time last_heard_{};
  Duration install_pause_{};
  bool connected_ = false;
  bool elsewhere_ = false;
  bool ever_heard_ = false;
  std::vector<std::uint64_t> follower_epochs_;
  std::uint64_t behind_followers_ = 0;
  std::optional<VersionNumber> applied_;  ///< Not set: what is served is in use.
  std::string last_refusal_;
  std::string channel_refusal_;
  std::string absent_why_;
  std::vector<SubscriberAction> actions_;
};

}  // namespace freshet::protocol
