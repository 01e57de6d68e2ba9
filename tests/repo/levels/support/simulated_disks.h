// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The disks of the simulated hosts, and what a job's ranks find on them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "repo/levels/restart/restart_plan.h"
#include "tests/repo/levels/support/parity_oracle.h"

namespace freshet::sim {

struct SimulatedDisks {
  /// What a host's disk has: shards by version, rank and number of ranks; and what was promised there.
  struct Disk {
    std::set<levels::ShardKey> shards;
    std::set<levels::ShardKey> rebuilt;                ///< From parity, beside.
    std::map<levels::ShardKey, std::uint32_t> parity;  ///< And how many losses it is for.
    std::map<levels::ShardKey, std::uint64_t> steps;
    VersionNumber number_max = 0;
    std::uint64_t incarnation_max = 0;
    std::vector<VersionNumber> acknowledged = std::vector<VersionNumber>(levels::kLevels);
  };

  Disk& of(std::uint32_t rank) { return all[of_rank[rank]]; }
  const Disk& of(std::uint32_t rank) const { return all[of_rank[rank]]; }

  /// All ranks of a job are one group here.
  static levels::OfferedShard parity_of(const levels::ShardKey& key, std::uint32_t losses) {
    levels::OfferedShard shard{.key = key, .step = key.version.number, .kind = levels::ShardKind::parity};
    for (std::uint32_t member = 0; member < key.ranks; ++member) shard.members.push_back(member);
    shard.losses = losses;
    return shard;
  }

  bool is_somewhere(const levels::ShardKey& key) const {
    return std::ranges::any_of(
        of_rank, [&](std::size_t disk) { return all[disk].shards.contains(key) || all[disk].rebuilt.contains(key); });
  }
  bool can_be_rebuilt(const levels::ShardKey& key) const {
    std::uint32_t losses = 0;
    std::vector<bool> has_parity(key.ranks);
    std::vector<bool> has_share;
    for (std::uint32_t rank = 0; rank < key.ranks; ++rank) {
      has_share.push_back(is_somewhere({key.version, rank, key.ranks}));
      for (const std::size_t disk : of_rank) {
        const auto at = all[disk].parity.find({key.version, rank, key.ranks});
        if (at == all[disk].parity.end()) continue;
        has_parity[rank] = true;
        losses = at->second;
      }
    }
    return parity_gives(key.rank, losses, has_share, has_parity);
  }
  bool is_whole(const levels::Version& version, std::uint32_t ranks, bool also_rebuilt = false) const {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const levels::ShardKey key{version, rank, ranks};
      if (!is_somewhere(key) && !(also_rebuilt && can_be_rebuilt(key))) return false;
    }
    return true;
  }

  std::vector<Disk> all;
  std::vector<std::size_t> of_rank;  ///< Of one life.
};

}  // namespace freshet::sim
