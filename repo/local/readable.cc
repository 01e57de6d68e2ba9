// SPDX-License-Identifier: Apache-2.0
#include "repo/local/readable.h"

#include <utility>

#include "core/base/format.h"
#include "repo/local/local_repository.h"

namespace freshet {

class ReadableSegments::Kept {
 public:
  Kept(std::shared_ptr<ReadableSegments> all, std::vector<SegmentName> segments)
      : all_(std::move(all)), segments_(std::move(segments)) {
    const MutexLock lock(all_->mutex_);
    for (const SegmentName& segment : segments_) ++all_->readers_[segment];
  }
  ~Kept() {
    const MutexLock lock(all_->mutex_);
    for (const SegmentName& segment : segments_) {
      const auto at = all_->readers_.find(segment);
      if (--at->second == 0) all_->readers_.erase(at);
    }
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

 private:
  const std::shared_ptr<ReadableSegments> all_;
  const std::vector<SegmentName> segments_;
};

std::shared_ptr<const void> ReadableSegments::keep(std::vector<SegmentName> segments) {
  return std::make_shared<const Kept>(shared_from_this(), std::move(segments));
}

bool ReadableSegments::holds(const SegmentName& segment) const {
  const MutexLock lock(mutex_);
  return readers_.contains(segment);
}

Result<std::shared_ptr<const void>> ProviderRepository::keep_readable(std::span<const SegmentName>) const {
  return std::shared_ptr<const void>();
}

// gc() erases a segment's record before it asks whether anybody reads the blob, and here it is asked for the record
// after it was said that somebody does: one of the two sees the other.
Result<std::shared_ptr<const void>> LocalRepository::keep_readable(std::span<const SegmentName> segments) const {
  std::vector<SegmentName> names = impl_->segments.with_bases({segments.begin(), segments.end()});
  std::shared_ptr<const void> kept = impl_->readable->keep(names);
  for (const SegmentName& name : names) {
    const Result<std::string> record = impl_->backend->get(segment_record_key(name));
    if (record) continue;
    if (record.error().code() != Code::not_found) return fail(record.error());
    return fail(Code::not_found, format("segment {} is not stored here any more", to_string(name)));
  }
  return kept;
}

}  // namespace freshet
