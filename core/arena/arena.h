// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The arena's books: the segments, the versions that name them, the holders of those versions, and so the segments
/// that may be written again. Pure bookkeeping without memory, threads or time: the simulator drives the same code that
/// the shells run. The bytes are in slabs (core/arena/slab.h).
///
/// Invariants:
///   1. A segment is `writing`, `live` or `free`. It goes writing -> live (sealed by a version's commit) -> free, or
///      writing -> free (abandoned). Nobody but its writer may read a segment that is writing.
///   2. A live segment is named by at least one version in the table. It becomes free when the last such version
///   leaves.
///   3. A version leaves the table when nobody holds it. Holders are opaque numbers; one holder may hold a version
///   once.
///   4. No timer frees anything.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "core/model/manifest.h"

namespace freshet {

/// The place of a segment's bytes. Part of the wire format.
struct SegmentPlace {
  std::uint32_t slab = 0;  ///< In order of the slabs' creation, from 0; never reused within an incarnation.
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  auto operator<=>(const SegmentPlace&) const = default;
};

/// Index of a segment in its pool; reused only for the same place.
using SegmentIndex = std::uint32_t;

/// This bit is set in the indices of an arena of device memory (transport/arena/slab_arena.h). So one version may name
/// segments of both kinds of memory, and the table below holds and frees them alike.
inline constexpr SegmentIndex kOnDevice = SegmentIndex{1} << 31;

/// Cuts slabs into segments and knows the state of each. One thread at a time. acquire, seal and release are O(log n);
/// only an acquire that finds neither a free segment of its size nor uncut room walks the segments, to melt free
/// neighbours together.
class SegmentPool {
 public:
  struct Options {
    std::uint64_t limit_bytes = 0;  ///< Of all slabs together.
  };
  explicit SegmentPool(Options options) : options_(options) {}

  /// Adds room: a new slab, all of it uncut. The caller creates its memory. out_of_space when it would pass the limit.
  Result<std::uint32_t> add_slab(std::uint64_t bytes);

  /// A segment in state `writing`: the shadow of `tensor` (a free segment of this size that last held it) if there is
  /// one, else any free segment of this size, else a segment cut from uncut room, else a segment made of free
  /// neighbours. out_of_space when no slab has room: the caller adds a slab or gives up.
  Result<SegmentIndex> acquire(std::uint32_t tensor, std::uint64_t bytes);

  /// The same without melting. Nothing: there is neither a free segment of the size nor uncut room. For a caller that
  /// needs many segments, and does not want to melt a segment that fits another tensor.
  std::optional<SegmentIndex> take(std::uint32_t tensor, std::uint64_t bytes);

  /// Takes exactly this segment, in state `writing`, for a caller that knows and wants its content. False: it is not
  /// free.
  bool take_this(SegmentIndex segment);
  bool is_free(SegmentIndex segment) const;

  void seal(SegmentIndex segment);     ///< writing -> live.
  void release(SegmentIndex segment);  ///< writing or live -> free, as its tensor's newest shadow.

  const SegmentPlace& place(SegmentIndex segment) const;
  std::uint64_t slab_bytes() const { return slab_bytes_; }
  std::size_t slabs() const { return slabs_.size(); }
  std::uint64_t free_bytes() const { return free_bytes_; }  ///< Free segments and uncut room.
  std::uint64_t limit_bytes() const { return options_.limit_bytes; }
  void raise_limit(std::uint64_t bytes) { options_.limit_bytes = std::max(options_.limit_bytes, bytes); }

 private:
  enum class State : std::uint8_t { writing, live, free, melted };
  struct Segment {
    SegmentPlace place;
    std::uint64_t span = 0;  ///< Bytes of the slab that it takes.
    std::uint32_t tensor = 0;
    State state = State::writing;
  };
  struct SlabRoom {
    std::uint64_t bytes = 0;
    std::uint64_t used = 0;         ///< Cut so far, from the beginning.
    std::vector<SegmentIndex> cut;  ///< In order of offset, without gaps.
  };
  /// Neighbours of a slab that are free: cut[first, last), and the uncut room when `last` is the end.
  struct Run {
    std::uint32_t slab = 0;
    std::size_t first = 0;
    std::size_t last = 0;
  };

  std::optional<SegmentIndex> take_free(std::uint32_t tensor, std::uint64_t bytes);
  std::optional<SegmentIndex> cut_uncut(std::uint32_t tensor, std::uint64_t bytes);
  std::optional<Run> find_run(std::uint64_t bytes) const;
  SegmentIndex melt(const Run& run, std::uint32_t tensor, std::uint64_t bytes);
  SegmentIndex add_segment(const Segment& segment);
  void forget_free(SegmentIndex segment);

  Options options_;
  std::uint64_t slab_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::vector<SlabRoom> slabs_;
  std::vector<Segment> segments_;  ///< Melted ones stay, so that an index never means another place.
  /// Free segments by size, then by the tensor that they last held, the newest last.
  std::map<std::uint64_t, std::multimap<std::uint32_t, SegmentIndex>> free_;
};

/// The next multiple of `unit`, or `bytes` itself.
constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Segments start on this boundary: a cache line, and a page for those of a page and more.
std::uint64_t segment_alignment(std::uint64_t bytes);

/// The bytes of a slab that a segment takes. An empty tensor takes a cache line too, so that every segment has a place
/// of its own.
std::uint64_t segment_span(std::uint64_t bytes);

/// A holder keeps a version alive: the publisher (its newest version), a session's granted hold, a session's queue.
using HolderId = std::uint64_t;

/// The versions of an arena, each with the segments that its owner map names. One thread at a time.
class VersionTable {
 public:
  struct Entry {
    std::shared_ptr<const Manifest> manifest;
    std::vector<SegmentIndex> segments;  ///< By tensor index; then those in device memory, in any order.
  };

  /// Adds a version, held by `holder`. REQUIRES: its number is greater than every number added before.
  void add(Entry entry, HolderId holder);

  /// Adds a version that is older than the last added one. REQUIRES: the table has no version of its number.
  void add_older(Entry entry, HolderId holder);

  bool hold(VersionNumber number, HolderId holder);  ///< False if the table has no such version.

  /// Drops a hold, if it exists. Returns the segments that no version names any more.
  [[nodiscard("the segments must go back to the pool")]] std::vector<SegmentIndex> release(VersionNumber number,
                                                                                           HolderId holder);
  [[nodiscard("the segments must go back to the pool")]] std::vector<SegmentIndex> release_all(HolderId holder);

  const Entry* find(VersionNumber number) const;
  const Entry* newest() const;
  bool is_held_by(VersionNumber number, HolderId holder) const;
  std::vector<VersionNumber> numbers() const;  ///< Ascending.

 private:
  struct Row {
    Entry entry;
    std::set<HolderId> holders;
  };
  void insert(Entry entry, HolderId holder);
  void remove(VersionNumber number, std::vector<SegmentIndex>& unnamed);

  VersionNumber last_added_ = 0;
  std::map<VersionNumber, Row> rows_;
  std::unordered_map<HolderId, std::set<VersionNumber>> held_by_;
  std::unordered_map<SegmentIndex, std::uint32_t> versions_naming_;  ///< Count, for each live segment.
};

}  // namespace freshet
