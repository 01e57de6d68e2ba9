// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The memory of a simulated process that fetches: real bytes and the real pool, and the versions that its readers
/// have. A relay lends segments to its publishing half on top; a segment is free when neither has it.

#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "tests/transport/sim/host.h"

namespace freshet::sim {

class OwnArena {
 public:
  explicit OwnArena(Host& host, std::uint64_t copies);

  const std::shared_ptr<ArenaMemory>& memory() const { return memory_; }

  struct Plan {
    std::vector<SegmentIndex> segments;  ///< By tensor index.
    std::vector<std::uint32_t> missing;  ///< Tensors that have to be fetched.
  };
  /// Segments for a version: those of the newest that is kept, where the owner is the same, and new ones to be written.
  /// out_of_space when there is no room.
  Result<Plan> plan(const Manifest& manifest);
  void write(const Plan& plan, std::uint32_t tensor, std::uint64_t offset, Bytes bytes);
  MutableBytes bytes(SegmentIndex segment) { return memory_->at(pool_.place(segment)); }
  void abandon(const Plan& plan);

  /// Keeps a version until let_go of what this returns. One that was gone back to may be there twice.
  std::uint64_t keep(std::shared_ptr<const Manifest> manifest, const Plan& plan);
  void let_go(std::uint64_t kept);

  void lend(std::span<const SegmentIndex> segments) { lent_.insert(segments.begin(), segments.end()); }
  void give_back(std::span<const SegmentIndex> segments);
  /// What comes is read while it comes, by somebody who may still read it when it came to nothing.
  void show(std::span<const SegmentIndex> segments);
  void unshow(std::span<const SegmentIndex> segments);

  const SegmentPlace& place(SegmentIndex segment) const { return pool_.place(segment); }
  std::uint64_t live_bytes() const { return pool_.slab_bytes() - pool_.free_bytes(); }
  std::size_t versions() const { return kept_.size(); }

 private:
  struct Kept {
    std::shared_ptr<const Manifest> manifest;
    std::vector<SegmentIndex> segments;
  };
  bool is_kept(SegmentIndex segment) const;
  void release_unless_used(SegmentIndex segment);

  Host& host_;
  SegmentPool pool_;
  std::uint64_t last_kept_ = 0;
  std::map<std::uint64_t, Kept> kept_;
  std::set<SegmentIndex> lent_;
  std::multiset<SegmentIndex> shown_;
  std::shared_ptr<ArenaMemory> memory_ = std::make_shared<ArenaMemory>();
};

}  // namespace freshet::sim
