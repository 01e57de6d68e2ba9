// SPDX-License-Identifier: Apache-2.0
#include "transport/source/served_segments.h"

#include <utility>

#include "core/base/check.h"

namespace freshet::source {

void ServedSegments::add(std::span<const SegmentName> names, std::span<const SegmentIndex> segments,
                         std::span<const Bytes> memory) {
  FRESHET_CHECK(names.size() == segments.size() && names.size() == memory.size());
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const SegmentIndex index = segments[i];
    if (names_.has_name(index) && names_.name(index) == names[i]) continue;
    if (index >= segments_.size()) segments_.resize(index + std::size_t{1});
    // Written again only after it was free, and free only without pins.
    FRESHET_CHECK(!segments_[index].freed);
    if (names_.has_name(index)) names_.take(index);
    names_.give(index, names[i]);
    segments_[index].memory = memory[i];
  }
}

void ServedSegments::free(std::span<const SegmentIndex> segments) {
  std::vector<SegmentIndex> unread;
  unread.reserve(segments.size());
  {
    MutexLock lock(mutex_);
    for (const SegmentIndex index : segments) {
      if (names_.has_name(index)) {
        names_.take(index);
        segments_[index].freed = segments_[index].pins > 0;
        if (segments_[index].freed) continue;
      }
      unread.push_back(index);
    }
  }
  if (!unread.empty()) on_free_(unread);
}

std::optional<ServedSegments::Pin> ServedSegments::pin(const SegmentName& name) {
  MutexLock lock(mutex_);
  const SegmentIndex index = closed_ ? SegmentNames::kNone : names_.first(name);
  if (index == SegmentNames::kNone) return std::nullopt;
  ++segments_[index].pins;
  ++pins_;
  return Pin(shared_from_this(), index, segments_[index].memory);
}

void ServedSegments::unpin(SegmentIndex index) {
  bool last_of_freed = false;
  {
    MutexLock lock(mutex_);
    Segment& segment = segments_[index];
    FRESHET_CHECK(segment.pins > 0);
    last_of_freed = --segment.pins == 0 && segment.freed;
    if (last_of_freed) segment.freed = false;
  }
  if (last_of_freed) on_free_(std::span(&index, 1));
  // Counted down last: whom on_free belongs to may be waiting in close().
  MutexLock lock(mutex_);
  --pins_;
  unpinned_.notify_all();
}

void ServedSegments::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  while (pins_ > 0) unpinned_.wait(mutex_);
}

ServedSegments::Pin& ServedSegments::Pin::operator=(Pin&& other) noexcept {
  if (this != &other) {
    release();
    owner_ = std::move(other.owner_);
    segment_ = other.segment_;
    bytes_ = other.bytes_;
  }
  return *this;
}

void ServedSegments::Pin::release() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->unpin(segment_);
}

}  // namespace freshet::source
