// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Segments that somebody is reading from another process, and that gc() therefore leaves. Private to this room.

#include <memory>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/ids.h"

namespace freshet {

/// Any thread.
class ReadableSegments : public std::enable_shared_from_this<ReadableSegments> {
 public:
  /// They are left until what is returned is destroyed, which may be after the repository was.
  std::shared_ptr<const void> keep(std::vector<SegmentName> segments) FRESHET_EXCLUDES(mutex_);
  bool holds(const SegmentName& segment) const FRESHET_EXCLUDES(mutex_);

 private:
  class Kept;

  mutable Mutex mutex_;
  std::unordered_map<SegmentName, std::size_t> readers_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
