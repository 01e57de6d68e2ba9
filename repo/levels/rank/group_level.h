// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The level `group`: each rank keeps a copy of the shard of the rank before it in the ring, or parity of its group's
/// shards.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "core/base/result.h"
#include "repo/levels/parity/parity_maker.h"
#include "repo/levels/rank/job.h"
#include "repo/levels/rank/kept_shards.h"
#include "repo/levels/rank/level_thread.h"
#include "repo/levels/restart/assembly.h"
#include "repo/levels/terms/ring.h"

namespace freshet::levels {

class GroupLevel final : public LevelWork {
 public:
  /// REQUIRES: the job has groups.
  GroupLevel(const Job& job, KeptShards& kept);

  Status reach(const Due& due) override;

 private:
  Status make_parity(const Version& version, std::uint64_t step);
  Status copy_shard(const Version& version, std::uint64_t step);
  /// Whether the copy here of `store`'s shard has the bytes that `newest` has there.
  bool has_bytes_for(const ShardHeader& newest, const Version& store, std::span<const StoredPiece> pieces) const;
  /// check_records(), of a shard of the rank before this one.
  Status check(const ShardHeader& header, std::span<const StoredPiece> pieces) const;
  /// What the copy here has of the payload; zeros where it cannot be read (read_readable()).
  Status read_kept(const ShardKey& key, std::uint64_t at, MutableBytes out) const;
  Status copy_payload(ShardSource& source, const ShardHeader& newest, const Version& store,
                      std::span<const StoredPiece> pieces, std::uint64_t step);

  const Job& job_;
  KeptShards& kept_;
  const RingPlace ring_;
  std::unique_ptr<ParityMaker> parity_;  ///< Null: copies.
  Pace pace_;
  std::optional<Version> newest_copy_;  ///< Of this life.
  /// The newest copy, and what it needs. These have all bytes of them that the next copy needs: if a shard needs
  /// bytes of an older shard, then the shard before it in this life needed the same bytes.
  std::set<Version> copied_;
};

}  // namespace freshet::levels
