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
///
/// The parts: SubscriberSession (with whom, and by which SessionChannel), Sessions (what is held through doors),
/// Position (what is served, and how far it has come), Wants (what is asked for) and SubscriberVersions (what is to be
/// had next, by the publisher's News and what is Staging).

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/protocol/subscriber/subscriber_versions.h"

namespace freshet::protocol {

class SubscriberMachine {
 public:
  using Options = SubscriberSession::Options;
  explicit SubscriberMachine(Options options);
  SubscriberMachine(const SubscriberMachine&) = delete;
  SubscriberMachine& operator=(const SubscriberMachine&) = delete;

  void on_start(Time now) { session_.start(now); }  ///< Once.
  void on_message(Message message, Time now);
  void on_announcement(const Announcement& announcement, Time now) { versions_.on_announcement(announcement, now); }
  /// The shell reached another publisher than before, or the same one after its connection broke.
  void on_reached(Time now);
  void on_door_open(SessionId session, Time now);
  /// Also when it could not be opened.
  void on_door_closed(SessionId session, Time now) { session_.on_door_closed(session, now); }

  /// The channel of the last OpenChannel is connected; or could not be, or died.
  void on_channel_open(SessionId session, Time now);
  void on_channel_closed(SessionId session, const Error& why, Time now) {
    session_.on_channel_closed(session, why, now);
  }
  /// Bytes came through it: a publisher that is busy sending is not silent.
  void on_channel_progress(SessionId session, Time now) { session_.on_channel_progress(session, now); }

  /// The shell finished an Install: the version is served, or was refused with a reason (a hostile manifest, a lost
  /// slab).
  void on_installed(SessionId session, VersionNumber number, const Status& status, Time now) {
    versions_.on_installed(session, number, status, now);
  }
  /// The shell can decode manifests of that architecture; the last few are named in every Want.
  void on_architecture_known(const Digest& digest) { wants_.on_architecture_known(digest); }
  /// Nobody in this process reads that version of that session any more, nor will: it is not the served one either.
  void on_unpinned(SessionId session, VersionNumber number, Time /*now*/) { sessions_.drop(session, number); }
  /// A `latest` subscriber's served version is not what its manifest says after all, and was withdrawn by the shell:
  /// whatever is current is asked for anew, also when it is the same.
  void on_refuted(VersionNumber number, Time now) { versions_.on_refuted(number, now); }
  /// For `every`: the application took the delivered version, so the next may come.
  void on_taken(VersionNumber number, Time now) { versions_.on_taken(number, now); }
  /// Somebody whom this process serves has seen that number: the publisher is told with the next Hello, and at once
  /// when it is there.
  void on_higher_seen(VersionNumber number, Time now);
  /// From now on this process maps versions in that GPU's memory too, by its UUID, where the publisher has them there.
  void take_device(const std::string& uuid) {
    if (channel().take_device(uuid)) session_.repeat_hello();
  }
  /// The directory says that this is current; only a later epoch is news. A publisher that is silent may have swapped
  /// it, and a version that is staged, or served already, need not wait for its word.
  void on_record(const Current& pair, Time now) { versions_.on_record(pair, now); }
  /// Says Bye. Snapshots that outlive the subscriber go on reading the versions that are held then.
  void on_stop(Time now);

  /// Told to the publisher with each Ping. A change that on_followers() hears of brings the next Ping.
  Followers& followers() { return versions_.followers(); }
  void on_followers(Time now) { versions_.on_followers(now); }
  /// Whether the shell knows another place where the model may be had, and turns to it when nobody answers.
  void set_elsewhere(bool elsewhere) { session_.set_elsewhere(elsewhere); }

  /// Gets a version by hand, beside the served one; staging() tells what comes of it. For members.
  Status stage(VersionNumber number, Time now);
  /// The same, for `latest` subscribers that are no members: the version is only looked at, until forget().
  Status bring(VersionNumber number, Time now);
  void forget(VersionNumber number, Time now) { versions_.forget(number, now); }
  /// Swaps in what was staged by hand, and says which that is.
  Result<VersionNumber> commit_staged(Time now) { return versions_.commit_staged(now); }
  /// Asks the publisher now whether what is served is current; News::confirmed_at() tells.
  void probe(Time now);

  void on_tick(Time now);
  Time next_tick() const { return std::min(session_.next_tick(), versions_.next_tick()); }

  std::vector<SubscriberAction> take_actions() { return out_.take(); }

  const Position& position() const { return position_; }
  const News& news() const { return versions_.news(); }
  const Staging& staging() const { return versions_.staging(); }
  const SubscriberSession& session() const { return session_; }
  /// From then on a member does not know any more what was decided; nothing for who is no member.
  std::optional<Time> lapses_at() const;
  /// Why what is current is not served here though it is known: nobody who was asked has it. Empty otherwise.
  std::string_view absent_why() const;
  /// Not to be written by the shell, but for what it measures.
  SessionChannel& channel() { return session_.channel(); }

 private:
  void on(const Welcome& welcome, Time now);

  const Options options_;
  SubscriberActions out_;
  Position position_{options_.mode, options_.after, options_.after_incarnation};
  Sessions sessions_{options_.session_seed, out_};
  Wants wants_{options_.retry_after, out_};
  SubscriberSession session_{options_, position_, sessions_, wants_, out_};
  SubscriberVersions versions_{options_, position_, sessions_, wants_, session_, out_};
};

}  // namespace freshet::protocol
