// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Meeting, agreement and watching each other, for the N ranks of one job: a state machine without I/O. Rank 0 is the
/// hub: everybody speaks with it, and it decides. WIRE.md beside this tells the protocol as prose.
///
/// These rules hold, whatever is lost or late (tests/repo/levels/levels_sim_test.cc):
///   1. Ranks whose claims differ never meet; the error names the rank and the claim.
///   2. A decision is the same at each rank that learns it, and is made of all ranks' contributions.
///   3. A rank that is dead, stopped or cut off is named by each other rank within `silence` and a ping; from then on
///      this meeting is over, for all: no decision is made any more.
///   4. A rank that was itself not running counts nobody as silent for that time.

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/base/clock.h"
#include "transport/group/messages.h"

namespace freshet::group {

/// One thread at a time.
class GroupMachine {
 public:
  struct Times {
    Duration ping = std::chrono::milliseconds(100);
    Duration silence = std::chrono::milliseconds(850);  ///< After which a rank counts as lost.
    Duration patience = std::chrono::seconds(30);       ///< Until all are here.
  };
  struct Self {
    Rank rank = 0;
    Rank ranks = 1;
    Claims claims;
    Peer peer;
  };
  /// The actions for its owner.
  struct Send {
    Rank to = 0;
    Message message;
  };
  struct Outcome {
    std::vector<Send> sends;
    bool met = false;  ///< Now; peers() has everybody.
    /// Rank 0: all contributions to this agreement are there, by rank; decide() is to be called.
    std::optional<std::pair<std::uint64_t, std::vector<std::vector<std::byte>>>> to_decide;
    std::optional<std::pair<std::uint64_t, Message>> decided;  ///< Its `data`, or its error.
    std::vector<Message> notes;
    std::optional<Error> ended;  ///< The meeting is over, and why. lost() says who is lost, if that is it.
  };

  GroupMachine(Self self, Times times, Time now);

  Outcome on_message(const Message& message, Time now);
  /// Rank 0 of a member, a member of rank 0: its connection ended.
  Outcome on_gone(Rank peer, Time now);
  Outcome on_tick(Time now);
  /// Its part of agreement `number`; numbers count from 1, and each waits for the one before it.
  Outcome contribute(std::uint64_t number, std::vector<std::byte> data, Time now);
  /// Rank 0: what was decided.
  Outcome decide(std::uint64_t number, Result<std::vector<std::byte>> decision, Time now);
  Outcome note(Rank to, std::vector<std::byte> data);
  /// Agreement `number` is the last one: once it is decided, nobody is lost by going.
  void leave_after(std::uint64_t number) { last_ = number; }

  bool has_met() const { return met_; }
  bool is_leaving() const { return leaving_; }
  bool is_over() const { return over_.has_value(); }
  const std::vector<Peer>& peers() const { return peers_; }
  const std::vector<Rank>& lost() const { return lost_; }
  Time next_tick() const { return next_ping_; }

 private:
  bool is_hub() const { return self_.rank == 0; }
  Outcome take_hello(const Message& message, Time now);
  Outcome contribute_for(Rank rank, std::uint64_t number, std::vector<std::byte> data);
  Status check_claims(const Message& hello) const;
  void meet_if_all_are_here(Outcome& outcome, Time now);
  void lose(std::vector<Rank> ranks, std::string_view how, Outcome& outcome);
  void end(Error why, Outcome& outcome);
  void send_to_all(const Message& message, Outcome& outcome) const;
  Message message_of(Kind kind, std::uint64_t number = 0) const;

  // Constant after construction.
  const Self self_;
  const Times times_;
  const Time began_;

  bool met_ = false;
  bool leaving_ = false;
  std::optional<std::uint64_t> last_;
  std::optional<Error> over_;
  std::vector<Rank> lost_;
  std::vector<Peer> peers_;
  Time next_ping_;
  Time last_tick_;
  std::map<Rank, Peer> here_;                                                      ///< Rank 0, before all have met.
  std::map<Rank, Time> heard_;                                                     ///< Of those whom this rank watches.
  std::map<std::uint64_t, std::map<Rank, std::vector<std::byte>>> contributions_;  ///< Rank 0.
};

}  // namespace freshet::group
