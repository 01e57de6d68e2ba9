#pragma once

/// What the simulated processes share: the world, the network, the host directory's last number, the oracle, the doors'
/// wiring, and the rules that are broken on purpose to see that the simulator notices.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "tests/sim/memory.h"
#include "tests/sim/world.h"
#include "transport/protocol/messages.h"
#include "transport/protocol/publisher_session.h"

namespace freshet::sim {

inline constexpr const char* kModel = "demo";

/// A rule of the protocol that a run breaks on purpose.
enum class Sabotage {
  none,
  release_on_timer,     ///< A silent session's holds are released though its door is open.
  ignore_grants_seen,   ///< A Held releases grants that were still on their way.
  leave_door_early,     ///< A subscriber leaves its door while a version is still read.
  forget_gap,           ///< An `every` subscriber is told of no gaps.
  lose_freed_segments,  ///< What is free never comes back.
  never_unpin,          ///< A subscriber keeps versions that nobody reads.
  write_in_place,       ///< The trainer writes into the newest version's segments.
};

class SimPublisher;
class SimSubscriber;

struct Host {
  explicit Host(std::uint64_t seed, Sabotage broken) : world(seed), network(world), sabotage(broken) {}

  World world;
  Network network;
  Sabotage sabotage;
  Oracle oracle;
  VersionNumber last_number = 0;  ///< As the host directory keeps it across publishers.
  protocol::Current current;      ///< The directory's record, likewise.
  std::uint64_t incarnations = 0;
  std::shared_ptr<const Architecture> architecture;
  /// Subscribers refuse some versions as corrupt. Whoever does holds its old version until a newer one is published, so
  /// the arena has room for all of those then; elsewhere it is as small as two copies of the model.
  bool refusals = false;
  bool faults = true;   ///< Failing installs, wasted numbers.
  bool reading = true;  ///< Readers go on pinning.
  SimPublisher* publisher = nullptr;
  std::vector<SimSubscriber*> subscribers;
};

/// Over the wire and back: every simulated message passes through the real codec.
inline protocol::Message through_codec(World& world, const protocol::Message& message) {
  auto decoded = protocol::decode(protocol::encode(message));
  if (!decoded) world.violated("a message of ours was refused: " + decoded.error().message());
  return std::move(*decoded);
}

}  // namespace freshet::sim
