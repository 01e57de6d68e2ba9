// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/rank/kept_shards.h"

#include <algorithm>

#include "repo/levels/terms/ring.h"

namespace freshet::levels {

void KeptShards::keep(Level level, VersionNumber number) {
  const MutexLock lock(mutex_);
  std::set<Version>& kept = level == Level::local ? kept_.own : kept_.copies;
  kept.insert(job_.version_of(number));
  const std::uint32_t keep = job_.keeps(level, 2);
  while (kept.size() > keep) kept.erase(std::ranges::min_element(kept, {}, &Version::number));
}

void KeptShards::keep_earlier(Level level, const Version& version) {
  const MutexLock lock(mutex_);
  (level == Level::local ? kept_.own : kept_.copies).insert(version);
}

void KeptShards::set_newest(const Version& version) {
  const MutexLock lock(mutex_);
  newest_ = version;
}

void KeptShards::need(std::span<const Version> versions) {
  const MutexLock lock(folder_mutex_);
  needed_.insert(versions.begin(), versions.end());
}

void KeptShards::need_only(const std::optional<Version>& version) {
  const MutexLock lock(folder_mutex_);
  needed_.clear();
  if (version) needed_.insert(*version);
}

/// A folder that no other rank has is cleaned by its rank; where several have one, each cleans up after itself, and
/// after ranks that are no more.
bool KeptShards::is_to_clean(const HeldShard& shard) const {
  if (!job_.shares_folder) return true;
  const bool has_partners = job_.options.group.kind == GroupScheme::Kind::partner;
  if (shard.kind == ShardKind::copy && has_partners && shard.key.ranks == job_.options.ranks) {
    return place_in_ring(job_.groups, shard.key.rank).copy_is_at == job_.options.rank;
  }
  return shard.key.rank % job_.options.ranks == job_.options.rank;
}

KeptShards::Kept KeptShards::kept_now() const {
  // First the open ones: a version is kept before it is not open any more.
  const std::vector<VersionNumber> open = book_.open_versions();
  const MutexLock lock(mutex_);
  Kept kept = kept_;
  for (const VersionNumber number : open) {
    kept.own.insert(job_.version_of(number));
    kept.copies.insert(job_.version_of(number));
  }
  // What partners copy next is compared with what they have: the shards stay as long as a copy of them is kept.
  kept.own.insert(kept.copies.begin(), kept.copies.end());
  return kept;
}

bool KeptShards::add_needs(const HeldShard& shard, Needed& needed) const {
  const auto need = [&](const ShardHeader& head, std::size_t record, std::uint64_t count) {
    const Version& store = head.versions[head.records[record].store];
    needed[{{store, shard.key.rank, shard.key.ranks}, shard.kind}].push_back({head.records[record].offset, count});
  };
  if (shard.kind == ShardKind::parity) {
    const auto head = job_.folders->read_header(shard.key, shard.kind);
    if (!head) return false;
    const std::vector<ByteRange> blocks = head->parity->blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) need(*head, i, blocks[i].bytes);
    return true;
  }
  const auto described = job_.folders->describe(shard.key, shard.kind);
  if (!described) return false;
  const std::vector<StoredPiece>& pieces = described->cut.pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) need(described->header, i, pieces[i].piece.bytes());
  return true;
}

void KeptShards::clean(std::uint64_t step, bool only_this_life) {
  const MutexLock folder_lock(folder_mutex_);
  std::optional<Version> newest;
  {
    // The writer's next shard inherits from this one, or from what it writes from now on.
    const MutexLock lock(mutex_);
    newest = newest_;
  }
  // First what is there, then what of it stays: the writer and the copier go on meanwhile, and what they wrote before
  // the scan was begun before it.
  bool unsure = false;
  std::vector<HeldShard> here;
  for (HeldShard& shard : job_.folders->scan(nullptr, &unsure)) {
    if (shard.folder == job_.folders->first() && is_to_clean(shard)) here.push_back(std::move(shard));
  }
  if (unsure) return;  // What could not be looked at may need what is here.
  job_.point("cleaning", step);
  Kept kept = kept_now();
  if (newest) kept.own.insert(*newest);
  const auto is_of_this_life = [&](const HeldShard& shard) {
    return shard.key.version == job_.version_of(shard.key.version.number);
  };
  const auto is_kept = [&](const HeldShard& shard) FRESHET_REQUIRES(folder_mutex_) {
    if (only_this_life && !is_of_this_life(shard)) return true;
    if (shard.kind != ShardKind::own && needed_.contains(shard.key.version)) return true;
    return !shard.bytes_only && (shard.kind == ShardKind::own ? kept.own : kept.copies).contains(shard.key.version);
  };
  Needed needed;
  for (const HeldShard& shard : here) {
    if (!is_kept(shard) || shard.bytes_only || shard.needs.empty()) continue;
    // A shard of an earlier life needs no bytes of this one.
    if (only_this_life && !is_of_this_life(shard)) continue;
    if (!add_needs(shard, needed)) return;  // It cannot be told what may go: nothing does.
  }
  for (const HeldShard& shard : here) {
    if (is_kept(shard)) continue;
    const auto at = needed.find({shard.key, shard.kind});
    Status done;
    if (at == needed.end()) {
      done = job_.folders->remove(shard.key, shard.kind);
    } else {
      std::ranges::sort(at->second, {}, &ByteRange::offset);
      done = job_.folders->demote(shard.key, at->second, shard.kind);
    }
    if (!done) job_.warn(done.error().message());
  }
}

}  // namespace freshet::levels
