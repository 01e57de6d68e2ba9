#include "transport/serve/served_segments.h"

#include <utility>

#include "core/check.h"

namespace freshet::serve {

void ServedSegments::add(std::span<const SegmentName> names, std::span<const SegmentIndex> segments,
                         std::span<const Bytes> memory) {
  FRESHET_CHECK(names.size() == segments.size() && names.size() == memory.size());
  MutexLock lock(mutex_);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Segment& segment = segments_[segments[i]];
    // Written again only after it was free, and free only without pins.
    FRESHET_CHECK(!segment.freed);
    if (segment.memory.data() != nullptr && segment.name == names[i]) continue;
    segment.name = names[i];
    segment.memory = memory[i];
    by_name_[names[i]] = segments[i];
  }
}

void ServedSegments::free(std::span<const SegmentIndex> segments) {
  std::vector<SegmentIndex> unread;
  {
    MutexLock lock(mutex_);
    for (const SegmentIndex index : segments) {
      const auto at = segments_.find(index);
      if (at == segments_.end()) {
        unread.push_back(index);
        continue;
      }
      const auto name = by_name_.find(at->second.name);
      if (name != by_name_.end() && name->second == index) by_name_.erase(name);
      if (at->second.pins > 0) {
        at->second.freed = true;
        continue;
      }
      segments_.erase(at);
      unread.push_back(index);
    }
  }
  if (!unread.empty()) on_free_(unread);
}

std::optional<ServedSegments::Pin> ServedSegments::pin(const SegmentName& name) {
  MutexLock lock(mutex_);
  const auto at = by_name_.find(name);
  if (closed_ || at == by_name_.end()) return std::nullopt;
  Segment& segment = segments_.at(at->second);
  ++segment.pins;
  ++pins_;
  return Pin(shared_from_this(), at->second, segment.memory);
}

void ServedSegments::unpin(SegmentIndex index) {
  bool last_of_freed = false;
  {
    MutexLock lock(mutex_);
    const auto at = segments_.find(index);
    FRESHET_CHECK(at != segments_.end() && at->second.pins > 0);
    last_of_freed = --at->second.pins == 0 && at->second.freed;
    if (last_of_freed) segments_.erase(at);
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
  by_name_.clear();
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

}  // namespace freshet::serve
