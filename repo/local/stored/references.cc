// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/references.h"

#include <algorithm>

#include "core/base/check.h"

namespace freshet {

void References::add_segments(std::span<const SegmentName> segments) {
  for (const SegmentName& segment : segments) ++segments_[segment];
}

void References::drop_segments(std::span<const SegmentName> segments) {
  for (const SegmentName& segment : segments) {
    const auto found = segments_.find(segment);
    FRESHET_CHECK(found != segments_.end());  // Who leaves has entered.
    if (--found->second == 0) segments_.erase(found);
  }
}

void References::drop_architecture(const Digest& digest) {
  const auto found = architectures_.find(digest);
  FRESHET_CHECK(found != architectures_.end());
  if (--found->second == 0) architectures_.erase(found);
}

std::uint32_t References::of(const SegmentName& segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? 0 : found->second;
}

std::uint32_t References::of(const Digest& architecture) const {
  const auto found = architectures_.find(architecture);
  return found == architectures_.end() ? 0 : found->second;
}

std::vector<SegmentName> distinct_segments(const OwnerMap& owners) {
  std::vector<SegmentName> segments(owners.owners().begin(), owners.owners().end());
  std::sort(segments.begin(), segments.end());
  segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  return segments;
}

}  // namespace freshet
