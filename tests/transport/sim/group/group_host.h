// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the processes of the group's simulation share. It is about what is current, and about nothing else: both
/// machines and the codec are the real ones, but versions have no bytes (protocol_sim_test.cc looks at those). There is
/// a directory that answers late or not at all, partitions in one direction or both, clocks that differ and jump.
///
/// Properties, each checked as things happen:
///   1. Whoever serves a version serves one that is or was current, by the directory, under the epoch that it names. So
///      nobody serves a candidate before the swap, nor, under a hold, anything else than what is held.
///   2. Pairs only grow, in the directory and for each subscriber; nobody serves under an epoch when it has heard of a
///      later one.
///   3. A group's swap is asked for only when every member that is in good standing by its own clock, and known to the
///      publisher, has staged the candidate.
///   4. Who is in good standing by its own clock serves under the latest epoch that a publisher knew a membership time
///      ago. That bounds the time in which two versions are served.
///   5. The answer to an activation without a group counts each follower that the publisher knows and that serves under
///      an earlier epoch, also a follower that is stopped or cut off.
///   6. When the trouble ends, every follower serves the current version.

#include <map>
#include <string>
#include <vector>

#include "tests/transport/sim/world.h"
#include "transport/protocol/messages.h"

namespace freshet::sim {

/// A rule that a run breaks on purpose.
enum class GroupSabotage {
  none,
  announce_before_swap,  ///< The publisher takes the directory's yes for granted.
  stage_for_others,      ///< It hears words that its members never said.
  forget_hold,           ///< A successor does not read the record.
  never_lapse,           ///< Members believe what they know for ever.
  finish_abandoned,      ///< A member serves what it was told to abandon.
};

class GroupPublisher;
class GroupMember;

struct GroupHost {
  GroupHost(std::uint64_t seed, GroupSabotage broken) : world(seed), network(world), sabotage(broken) {}

  World world;
  Network network;
  GroupSabotage sabotage;
  bool faults = true;
  bool group_commit = false;
  Duration membership{};

  // The directory.
  protocol::Current record;
  VersionNumber last_number = 0;
  std::uint64_t incarnations = 0;
  std::map<std::uint64_t, protocol::Current> activated;  ///< The pair that began each epoch.

  std::map<std::uint64_t, Time> known_since;  ///< When a living publisher first knew of an epoch.
  GroupPublisher* publisher = nullptr;
  std::vector<GroupMember*> members;

  // What came to pass.
  std::uint64_t commits = 0;    ///< Group activations that were decided.
  std::uint64_t given_up = 0;   ///< Candidates and activations that were refused.
  std::uint64_t rollbacks = 0;  ///< Activations that set a hold.
  std::uint64_t swaps = 0;      ///< Versions swapped in from what was staged.
  std::uint64_t lapses = 0;     ///< Looks at a member that had lapsed.
  std::uint64_t behind = 0;     ///< Answers that counted somebody who does not follow.
};

inline protocol::Message over_the_wire(World& world, const protocol::Message& message) {
  auto decoded = protocol::decode(protocol::encode(message));
  if (!decoded) world.violated("a message of ours was refused: " + decoded.error().message());
  return std::move(*decoded);
}

struct GroupOutcome {
  std::string violation;  ///< Empty when every property held.
  std::uint64_t commits = 0;
  std::uint64_t given_up = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t swaps = 0;
  std::uint64_t lapses = 0;
  std::uint64_t behind = 0;
};

GroupOutcome simulate_group(std::uint64_t seed, GroupSabotage sabotage);

}  // namespace freshet::sim
