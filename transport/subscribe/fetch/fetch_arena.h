// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The memory of a subscriber that fetches: an arena of its own, and a ledger of what each segment's bytes are known to
/// be. A live segment's content is served; a free one's is still there, and so is worth something: it may be the very
/// tensor that a later version names (a rollback, a fetch that was broken off), or a shadow that an element delta is
/// applied to at the cost of what changed.
///
/// Invariants:
///   1. A content in the ledger was proved: its bytes have the digest that stands beside it. Before a segment is
///      written its content is struck out; it is entered again when the new bytes were proved.
///   2. A segment is free if and only if nobody refers to it. Versions refer to theirs (served, pinned or relayed), a
///      fetch to those that it writes and starts from, and whoever passes on what comes to those that it comes to.
///   3. A content is found only by name, digest and size together, so that a peer that gives one name to two contents
///      gets nothing mixed.
///
/// Owned by the subscriber's loop thread.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "transport/arena/segment_names.h"
#include "transport/arena/slab_arena.h"
#include "transport/subscribe/fetch/content.h"

namespace freshet::detail {

class FetchArena {
 public:
  struct Options {
    std::string name;  ///< Of the memory, for /proc/PID/maps.
    /// Touched by prepare(), in copies of the model: one to serve, one to fetch into, and a little.
    double copies = 2.1;
    std::uint64_t limit_bytes = 0;  ///< 0: four times the first architecture, plus 64 MiB.
    bool whole = true;              ///< Has room also for tensors that are not served (Role).
    bool lock_memory = true;
    bool huge_pages = false;
  };
  explicit FetchArena(Options options);

  /// Creates and touches the memory for a model of this architecture, as far as it is not there. out_of_space when
  /// memory or limit does not suffice for one copy.
  Status prepare(const Architecture& architecture);

  /// Of the tensors that it has room for, once each.
  std::uint64_t bytes_of(const Architecture& architecture) const;

  /// The segment, live or free, that has this content. Live ones come first.
  std::optional<SegmentIndex> find(const Content& content) const;
  /// What is known of a segment; null when nothing is.
  const Content* content(SegmentIndex segment) const;

  /// One more reference to a segment that has a content; a free one is live again, as it is.
  void refer(SegmentIndex segment);

  /// One more reference to a segment that is being written, from somebody who reads what is there of it already. It
  /// cannot be begun anew from then on: write() is only for who refers to it alone.
  void refer_unproved(SegmentIndex segment);

  /// A segment to write, referred to once: the tensor's own shadow if there is one. Its content, if it has one, is
  /// still true. The wants that found room have a segment afterwards also when the answer is out_of_space.
  using Want = SlabArena::Want;
  Status acquire(std::span<Want> wants);
  /// Its bytes, to be written: what was known of them is struck out. REQUIRES: acquired, and not proved since.
  MutableBytes write(SegmentIndex segment);
  /// The bytes are these now. REQUIRES: acquired.
  void prove(SegmentIndex segment, const Content& content);
  /// The bytes are not what the ledger says (a scrub found out): nobody starts from them any more.
  void distrust(SegmentIndex segment);

  /// One reference less.
  void let_go(SegmentIndex segment);
  void let_go(std::span<const SegmentIndex> segments);

  /// These, and slabs(): any thread.
  Bytes bytes(SegmentIndex segment) const { return arena_.bytes(arena_.place(segment)); }
  SegmentPlace place(SegmentIndex segment) const { return arena_.place(segment); }
  std::vector<SegmentPlace> places(std::span<const SegmentIndex> segments) const { return arena_.places(segments); }
  std::vector<SlabReference> slabs() const { return arena_.slabs(); }
  std::vector<Bytes> slab_memory() const { return arena_.slab_memory(); }

  SlabArena::Stat stat() const { return arena_.stat(); }

 private:
  struct Row {
    std::optional<Content> content;
    std::uint32_t references = 0;
    bool sealed = false;  ///< Its bytes stay as they are until the last reference goes.
  };
  Row& row(SegmentIndex segment);
  void strike_out(SegmentIndex segment);
  std::uint64_t bytes_of(const TensorSpec& spec) const {
    return options_.whole || is_served(spec.role) ? spec.bytes() : 0;
  }

  const Options options_;
  SlabArena arena_;
  std::vector<Row> rows_;  ///< By segment.
  SegmentNames names_;     ///< Of those whose content is known.
};

}  // namespace freshet::detail
