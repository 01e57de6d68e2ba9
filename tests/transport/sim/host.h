// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the simulated processes share: the world, the network, the directories, the oracle, and the rules that are
/// broken on purpose to see that the simulator notices.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model/graph.h"
#include "tests/transport/sim/data/memory.h"
#include "tests/transport/sim/world.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher/publisher_session.h"

namespace freshet::sim {

inline constexpr const char* kModel = "demo";
/// The trainer's GPU, and one that a neighbour may have instead.
inline constexpr const char* kDevice = "GPU-a";
inline constexpr const char* kOtherDevice = "GPU-b";

/// A rule of the protocol that a run breaks on purpose.
enum class Sabotage {
  none,
  release_on_timer,         ///< A silent session's holds are released though its door is open.
  ignore_grants_seen,       ///< A Held releases grants that were still on their way.
  leave_door_early,         ///< A subscriber leaves its door while a version is still read.
  forget_gap,               ///< An `every` subscriber is told of no gaps.
  lose_freed_segments,      ///< What is free never comes back.
  never_unpin,              ///< A subscriber keeps versions that nobody reads.
  reuse_device_memory,      ///< A segment of device memory is free before its version is.
  write_in_place,           ///< The trainer writes into the newest version's segments.
  close_lease_early,        ///< A lease is said to be closed while a fetch still reads under it.
  never_close_lease,        ///< Nobody says that a lease is closed.
  install_unproved,         ///< What was fetched is served without its proof.
  believe_any_lease,        ///< A lease is accepted for another version, or another session.
  forget_relay_gap,         ///< A relay does not say what it missed itself.
  map_what_is_coming,       ///< A relay's neighbours may map what was not proved yet.
  reuse_what_is_passed_on,  ///< Memory is used again from which what came is still sent.
  never_go_around,          ///< A subscriber waits for a stopped relay though it knows another place.
  never_withdraw,           ///< Nobody is told that the rest of a version will not come.
};

class Source;
class SimPublisher;
class SimSubscriber;

struct Host {
  explicit Host(std::uint64_t seed, Sabotage broken) : world(seed), network(world), sabotage(broken) {}

  World world;
  Network network;
  Sabotage sabotage;
  Oracle oracle;
  VersionNumber last_number = 0;  ///< As the trainer's host directory keeps it across publishers.
  protocol::Current current;      ///< The directory's record, likewise.
  bool lost_directory = false;    ///< It was lost once.
  std::uint64_t incarnations = 0;
  std::uint64_t knocks = 0;
  std::shared_ptr<const Architecture> architecture;
  /// Subscribers refuse some versions as corrupt. Whoever does holds its old version until a newer one is published, so
  /// the arena has room for all of those then; elsewhere it is as small as two copies of the model.
  bool refusals = false;
  bool faults = true;   ///< Failing installs and channels, wasted numbers, lies, flipped bits.
  bool reading = true;  ///< Readers go on pinning.
  SimPublisher* publisher = nullptr;
  std::vector<Source*> sources;  ///< Whoever publishes: the trainer, relays.
  std::vector<SimSubscriber*> subscribers;

  /// By its name, or by an address of one of its lives: "door/NAME/LIFE". Nothing when there is none.
  Source* source_of(const std::string& address) const;

  /// That place is about to be written, for `tensor`. A violation when somebody could read it: a reader who has it
  /// mapped, or a fetch that has yet to send it.
  void check_write(const ArenaMemory& memory, const SegmentPlace& place, std::uint32_t tensor) const;
};

/// Over the wire and back: every simulated message passes through the real codec.
inline protocol::Message through_codec(World& world, const protocol::Message& message) {
  auto decoded = protocol::decode(protocol::encode(message));
  if (!decoded) world.violated("a message of ours was refused: " + decoded.error().message());
  return std::move(*decoded);
}

}  // namespace freshet::sim
