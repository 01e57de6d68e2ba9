// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The current version of one model, and its changes: the pair (epoch, number) with its hold, the publishes that
/// advance its number, the activations that advance its epoch, and the candidate that a group stages before one of
/// them. Owned by a PublisherMachine, which tells it what happens and carries out what it asks for. Handed a time; does
/// no I/O. One thread at a time.
///
/// The directory keeps the pair beyond this process's life. How they agree:
///   - A publish advances the number at once, is announced, and is recorded behind: one swap at a time, always to the
///     newest. So the record may lag, never in its epoch or hold, and while a hold is set not in its number either.
///     A successor that starts from a lagging record numbers its versions above it all the same, and subscribers that
///     had gone further do not go back: pairs only grow for them.
///   - An activation is recorded first and announced when the directory said yes. Killed before the swap, it never
///     happened; killed after it, whoever comes next starts from it.
///   - A swap without an answer is tried again until there is one: it may have happened. Meanwhile publishes go on,
///     and no other activation begins.
///
/// A group activation has three steps: members stage the candidate, the pair is swapped, members swap in. Every
/// activation begins an epoch, so that a member that missed all of it knows from the pair alone that something was
/// decided.
///
/// Whom a decision waits for. A member has lapsed for the publisher when it was not heard for the membership time, and
/// for itself when the last of its pings that was answered was sent so long ago, which is never later: the publisher
/// heard that ping after it was sent. So when a decision is taken without a member, that member already marks its
/// answers stale; and a member that staged, but cannot hear the decision, does so within the membership time of it.
/// An activation without a group counts silent followers as behind, since they may still serve the older version. Its
/// answer does not wait for them.
/// A publisher that was itself stopped looks at everybody anew before it believes that somebody lapsed, and one that
/// was started anew waits for the membership time: its predecessor's members are still on their way to it.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/publisher_session.h"

namespace freshet::protocol {

class Activation {
 public:
  struct Options {
    std::string model;
    Current current;                                   ///< As the directory has it.
    Time started{};                                    ///< When this process began to serve.
    bool follows = false;                              ///< A relay: the pair is another publisher's, told by on_seen.
    bool group_commit = false;                         ///< Every publish is a candidate of the group.
    Duration group_within = std::chrono::seconds(10);  ///< For those candidates.
    Duration membership = kMembershipDefault;
    Duration swap_again_after = std::chrono::milliseconds(200);
  };
  explicit Activation(Options options);

  /// A session of a `latest` subscriber, as the publisher knows it.
  struct Follower {
    SessionId session = 0;
    const Hello* hello = nullptr;
    bool member = false;
    Time last_heard{};
    VersionNumber serving = 0;
    std::uint64_t epoch = 0;
    std::uint32_t behind = 0;      ///< Of a relay, as Ping::behind.
    const Staged* word = nullptr;  ///< Its last word on a candidate.
  };

  void on_committed(VersionNumber number, Time now);
  /// `kept`: the versions that can be activated. Asked twice with one request, answers twice.
  void on_ask(const Peer& peer, const Activate& ask, const std::vector<VersionNumber>& kept, Time now);
  /// The record of the directory now, as the answer to swap(): `desired` when it was swapped. An error that may pass
  /// leaves it open whether it was.
  void on_swapped(Result<Current> record, Time now);
  /// The directory, or whoever this relay follows, says that this is current.
  void on_seen(const Current& pair, Time now);
  /// Somebody serves under that epoch. Either the directory knows why, and then says so instead of a swap, or its
  /// record was lost, and the pair goes on from there once it is swapped.
  void on_epoch_seen(std::uint64_t epoch, Time now);
  /// To be called after every event and on tick: decides what can be decided. `followers` are looked at only when
  /// needs_followers().
  void consider(const std::vector<Follower>& followers, Time now);
  /// There are members: from now on it ticks also when nothing is to be decided, so that a sleep of our own is noticed.
  void on_member() { has_members_ = true; }
  bool needs_followers() const { return pending_ || settling_; }
  Time next_tick() const { return wake_at_; }

  const Current& current() const { return current_; }
  VersionNumber candidate() const;  ///< 0: none.
  std::uint64_t turn() const { return turn_; }
  /// The versions that must be kept: the current one, and those that are to become it.
  std::set<VersionNumber> wanted() const;
  /// Why the last candidate or activation was given up; empty when the last one went well.
  const std::string& last_failure() const { return last_failure_; }
  /// How long members served two versions side by side at the last group commit; 0 when not known.
  Duration last_mixed() const { return last_mixed_; }

  struct Swap {
    Current expected;
    Current desired;
  };
  std::optional<Swap> take_swap();
  struct Answer {
    Peer peer;
    Activated activated;
  };
  std::vector<Answer> take_answers();

 private:
  struct Asker {
    Peer peer;
    std::uint64_t request = 0;
    bool operator==(const Asker&) const = default;
  };
  /// An activation that is not decided yet.
  struct Pending {
    std::optional<Asker> asker;  ///< None: the candidate of a publish.
    VersionNumber number = 0;
    bool hold = false;
    bool as_group = false;
    Time deadline{};
    std::uint64_t turn = 0;  ///< In which it was named: what members said before is not of it.
    bool swapping = false;   ///< All have staged: from here on only the directory can say no.
    std::string doubt;       ///< What the directory last said instead of an answer.
    std::uint32_t staged = 0;
    VersionNumber newest_at_swap = 0;
  };
  /// From a decision, or a question for the current version, until all followers serve that version.
  struct Settling {
    std::vector<Asker> askers;  ///< They get the same answer.
    bool is_decided = false;
    std::uint32_t members = 0;
    bool as_group = false;
    Time until{};
    std::optional<Time> first_seen;
    std::uint64_t behind = 0;  ///< When the followers were last looked at.
    std::uint32_t counted() const { return static_cast<std::uint32_t>(std::min<std::uint64_t>(behind, kBehindMax)); }
  };

  std::optional<Error> why_refused(const Activate& ask, const std::vector<VersionNumber>& kept) const;
  std::optional<Error> why_busy(const Activate& ask) const;
  void tell_doubt(Time now);
  void begin_next_candidate(Time now);
  void decide_staging(const std::vector<Follower>& followers, Time now);
  std::string why_not_staged(const Follower* slow, Time now) const;
  void give_up(Error why);
  void begin_settling(Settling settling, Time now);
  void settle(const std::vector<Follower>& followers, Time now);
  void end_settling(Duration mixed);
  void on_overtaken(const Current& record, Time now);
  void on_decided(const Current& pair, Time now);
  void on_caught_up(const Current& pair);
  void advance_to(const Current& pair);
  void prepare_swap(Time now);
  Time lapses_at(const Follower& follower) const;
  bool in_standing(const Follower& follower, Time now) const;
  void answer(const std::optional<Asker>& asker, Activated activated);
  void wake_by(Time at) { wake_at_ = std::min(wake_at_, at); }

  Options options_;
  Current current_;
  Current recorded_;  ///< The directory's, as far as is known.
  VersionNumber newest_ = 0;
  VersionNumber next_candidate_ = 0;  ///< Published while another one was being staged.
  std::uint64_t turn_ = 1;
  std::uint64_t epoch_floor_ = 0;
  std::uint64_t epochs_decided_ = 0;

  std::optional<Pending> pending_;
  std::optional<Settling> settling_;

  std::optional<Swap> in_flight_;   ///< Asked for and not answered.
  bool in_flight_decides_ = false;  ///< It is the pending activation's.
  std::optional<Swap> to_swap_;     ///< To be taken by the shell.
  Time swap_not_before_{};

  Time members_known_at_{};   ///< From then on, who has not come has lapsed.
  bool has_members_ = false;  ///< Or had.
  Time awake_since_{};        ///< Silence before that may be our own.
  Time wake_at_ = Time::max();

  std::deque<Answer> answered_;  ///< The last few, for those who ask again.
  std::vector<Answer> answers_;
  std::string last_failure_;
  Duration last_mixed_{};
};

}  // namespace freshet::protocol
