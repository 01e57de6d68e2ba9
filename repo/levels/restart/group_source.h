// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/shards/shard_folders.h"
#include "transport/group/group.h"

namespace freshet::levels {

/// Asks the ranks of a group, this one included.
class GroupSource final : public ShardSource {
 public:
  GroupSource(group::Group& group, Duration patience) : group_(group), patience_(patience) {}
  /// Rank `self` reads its own folders without asking itself.
  GroupSource(group::Group& group, Duration patience, const ShardFolders& folders, group::Rank self)
      : group_(group), patience_(patience), folders_(&folders), self_(self) {}
  Bytes head(const Holder& holder, std::uint32_t ranks) override;
  Bytes table(std::uint32_t holder, const Digest& digest) override;
  std::unique_ptr<Pending> read(const Holder& holder, std::uint32_t ranks, std::vector<ByteRange> ranges) override;
  bool read_into(const Holder& holder, std::uint32_t ranks, std::span<const PlacedRange> ranges) override;

 private:
  group::Group& group_;
  const Duration patience_;
  const ShardFolders* const folders_ = nullptr;
  const group::Rank self_ = 0;
};

}  // namespace freshet::levels
