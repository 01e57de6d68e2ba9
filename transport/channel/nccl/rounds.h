// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Who takes part in which round, and when a round ends: a state machine without I/O. A round is one communicator: the
/// server is its rank 0, its members are clients that wait for large chunks at the same time. In an open round one
/// transfer after another goes to all members at once.
///
///   gather     Clients that wait and have no round are collected for a moment, then a round of them is formed. A
///              client that waits for nothing is never in it.
///   join       The round opens when all have joined. Past a deadline it is broken.
///   transfer   Goes when all members wait, or when the moment is over for those that do not: these take part as long
///              as they were heard lately, and throw away what they did not ask for. Each transfer has a deadline.
///   end        A round is broken by a deadline, by an error, or by a member that left or is gone. It ends well when
///              nobody used it for a while, or when a member does not wait and was not heard lately. What its members
///              did not get goes to them by messages. A new round is made anew.
///   meet       A client that came late has a round of its own. Rounds whose members all wait at the same time become
///              one, if they fit into one: at most once a minute. To meet others, a round delays a transfer by the
///              moment of `gather`, at most once a second.
///   pause      The members that were late for a deadline, or failed, get messages alone for a while that doubles.
///
/// One thread at a time.

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::channel::nccl {

struct RoundLimits {
  std::size_t members_max = 63;  ///< Of a round, beside the server.
  std::size_t rounds_max = 8;    ///< At the same time, with those that are not closed; who finds none gets messages.
  std::size_t transfers_in_flight = 2;
  Duration gather = std::chrono::milliseconds(20);
  Duration join = std::chrono::seconds(2);
  /// And what the bytes take at the floor. Together less than kPeerSilence: a member that has nothing to say while
  /// another stands still is not put out for it.
  Duration transfer = std::chrono::seconds(1);
  std::uint64_t floor_bytes_per_second = std::uint64_t{16} << 20;
  Duration lately = std::chrono::seconds(1);
  Duration unused = std::chrono::seconds(60);
  Duration meet_again = std::chrono::seconds(60);  ///< Before rounds that met do so again: a new one takes its time.
  Duration pause_min = std::chrono::seconds(1);
  Duration pause_max = std::chrono::seconds(60);
};

class Rounds {
 public:
  using Member = std::uint64_t;
  using Number = std::uint64_t;  ///< Of a round; never used again.

  explicit Rounds(const RoundLimits& limits) : limits_(limits) {}

  // What happened.

  /// A chunk of the member's waits, or none does any more.
  void on_waits(Member member, bool waits, Time now);
  /// Its connection is gone.
  void on_gone(Member member);
  /// It left the round, by itself.
  void on_left(Member member, Number round, Time now);
  /// It has taken so many transfers of the round. An error: more than there were, or fewer than before.
  Status on_took(Member member, Number round, std::uint64_t transfers, Time now);
  /// The server's own rank: all have joined; so many transfers went out; it failed.
  void on_open(Number round, Time now);
  void on_sent(Number round, std::uint64_t transfers, Time now);
  void on_failed(Number round, Time now);
  /// Nothing is left of a round that ended: its thread is at its end.
  void on_closed(Number round) { closing_.erase(round); }
  /// A transfer was begun.
  void on_begun(Number round, std::uint64_t bytes, Time now);

  // What to do.

  /// A chunk for the member goes by messages: now it has no round to hope for.
  bool goes_by_messages(Member member, Time now) const;
  struct Steps {
    std::vector<Number> ended;  ///< Before those that are formed.
    std::vector<Number> late;   ///< Of these, those that a deadline broke.
    std::map<Number, std::vector<Member>> formed;
  };
  Steps step(Time now);
  /// Whether a transfer may begin.
  bool may_carry(Number round, Time now) const;
  /// When step() or may_carry() may say something else though nothing happened; Time::max() for never.
  Time due() const;

 private:
  struct Seat {
    std::uint64_t took = 0;
    Time heard{};
    bool behind = false;  ///< A transfer went without its wish; nobody waits for it before it wishes again.
  };
  struct Round {
    std::map<Member, Seat> seats;
    bool open = false;
    bool broken = false;
    bool met = false;  ///< It ends for the one that it becomes with others.
    std::uint64_t begun = 0;
    std::uint64_t sent = 0;
    Time used{};         ///< When a transfer was begun, or it opened.
    Duration allowed{};  ///< For the next step of the transfers in flight.
    Time deadline{};     ///< Of joining, or of that step.

    std::uint64_t finished() const;
    bool is_quiet() const { return open && finished() == begun; }  ///< Nothing has a deadline.
  };
  struct Known {
    bool waits = false;
    Time since{};
    Number round = 0;  ///< 0: none.
    int failures = 0;
    Time paused_until{};
  };

  bool is_full() const { return rounds_.size() + closing_.size() >= limits_.rounds_max; }
  bool is_free(const Known& known, Time now) const {
    return known.waits && known.round == 0 && now >= known.paused_until;
  }
  void penalize(Member member, Time now);
  static void advance(Round& round, std::uint64_t finished_before, Time now);
  Time first_wish(const Round& round) const;
  static bool is_late(const Round& round, Time now) {
    return !round.broken && !round.is_quiet() && now >= round.deadline;
  }
  bool is_over(Round& round, Time now);
  bool may_meet(const Round& round, Time now) const;
  void meet(Time now);
  void end(Round& round);

  const RoundLimits limits_;
  Number last_ = 0;
  Time may_meet_from_{};
  std::map<Member, Known> known_;
  std::map<Number, Round> rounds_;
  std::set<Number> closing_;
};

}  // namespace freshet::channel::nccl
