// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which segments bear a name. A model may have ten thousand small tensors, of which an update renames every one, so
/// the tables are flat, and the tensors of one writer lie side by side in them: maps of nodes cost as much as copying
/// the tensors did. One thread at a time.

#include <cstddef>
#include <vector>

#include "core/arena/arena.h"
#include "core/model/ids.h"

namespace freshet {

class SegmentNames {
 public:
  static constexpr SegmentIndex kNone = ~SegmentIndex{0};

  /// REQUIRES: it has no name.
  void give(SegmentIndex segment, const SegmentName& name);
  /// REQUIRES: it has a name.
  void take(SegmentIndex segment);
  bool has_name(SegmentIndex segment) const { return segment < rows_.size() && rows_[segment].named; }
  /// REQUIRES: it has a name.
  const SegmentName& name(SegmentIndex segment) const { return rows_[segment].name; }

  /// The segments of that name, the latest first: for (auto at = first(n); at != kNone; at = next(at)).
  SegmentIndex first(const SegmentName& name) const;
  SegmentIndex next(SegmentIndex segment) const { return same_name(rows_[segment].next, rows_[segment].name); }

 private:
  struct Row {
    SegmentName name;
    SegmentIndex next = kNone;  ///< In its bucket's list.
    bool named = false;
  };
  void grow_to(std::size_t segments);
  std::size_t bucket_of(const SegmentName& name) const;
  SegmentIndex same_name(SegmentIndex at, const SegmentName& name) const;

  std::vector<Row> rows_;              ///< By segment.
  std::vector<SegmentIndex> buckets_;  ///< A power of two, at least as many as rows; each the first of a list.
};

}  // namespace freshet
