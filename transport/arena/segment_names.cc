// SPDX-License-Identifier: Apache-2.0
#include "transport/arena/segment_names.h"

#include <bit>
#include <utility>

#include "core/base/check.h"

namespace freshet {

void SegmentNames::give(SegmentIndex segment, const SegmentName& name) {
  grow_to(segment + std::size_t{1});
  Row& row = rows_[segment];
  FRESHET_CHECK(!row.named);
  row = {.name = name, .next = std::exchange(buckets_[bucket_of(name)], segment), .named = true};
}

void SegmentNames::take(SegmentIndex segment) {
  FRESHET_CHECK(has_name(segment));
  SegmentIndex* link = &buckets_[bucket_of(rows_[segment].name)];
  while (*link != segment) link = &rows_[*link].next;
  *link = rows_[segment].next;
  rows_[segment].named = false;
}

SegmentIndex SegmentNames::first(const SegmentName& name) const {
  return buckets_.empty() ? kNone : same_name(buckets_[bucket_of(name)], name);
}

SegmentIndex SegmentNames::same_name(SegmentIndex at, const SegmentName& name) const {
  while (at != kNone && rows_[at].name != name) at = rows_[at].next;
  return at;
}

std::size_t SegmentNames::bucket_of(const SegmentName& name) const {
  return (std::hash<VersionId>()(name.writer) + name.tensor) & (buckets_.size() - 1);
}

void SegmentNames::grow_to(std::size_t segments) {
  if (segments <= rows_.size()) return;
  rows_.resize(std::bit_ceil(segments));
  buckets_.assign(2 * rows_.size(), kNone);
  for (SegmentIndex segment = 0; segment < rows_.size(); ++segment) {
    Row& row = rows_[segment];
    if (row.named) row.next = std::exchange(buckets_[bucket_of(row.name)], segment);
  }
}

}  // namespace freshet
