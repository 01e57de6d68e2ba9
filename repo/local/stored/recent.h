// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The values that were decoded last, found by the digest of what they were decoded from. Private to this room.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/mutex.h"

namespace freshet {

/// Any thread.
template <typename T, std::size_t kKept>
class Recent {
 public:
  /// Null for one that is not among them.
  std::shared_ptr<const T> find(const Digest& digest) const FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (const auto& [known, value] : values_) {
      if (known == digest) return value;
    }
    return nullptr;
  }
  void add(const Digest& digest, std::shared_ptr<const T> value) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (values_.size() < kKept) {
      values_.emplace_back(digest, std::move(value));
    } else {
      values_[next_++ % kKept] = {digest, std::move(value)};
    }
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::pair<Digest, std::shared_ptr<const T>>> values_ FRESHET_GUARDED_BY(mutex_);
  std::size_t next_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet
