// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which segments of host memory and of device memory have the same bytes. A capture that acquires both of a pair, to
/// write them again, makes the new bytes of the one in device memory, and takes the same changes to the other. Nobody
/// reads a segment that was acquired, so both are updated in place.

#include <optional>
#include <unordered_map>

#include "core/arena/arena.h"
#include "core/base/mutex.h"

namespace freshet {

/// Any thread.
class SegmentPairs {
 public:
  /// Both have the same bytes from now on, until take() names one of them.
  void note(SegmentIndex on_host, SegmentIndex on_device) FRESHET_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    device_of_[on_host] = on_device;
    host_of_[on_device] = on_host;
  }

  /// Both will be written; `on_device` may be none. Returns whether they are a pair now. Each was acquired by the
  /// caller.
  bool take(SegmentIndex on_host, std::optional<SegmentIndex> on_device) FRESHET_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto of_host = device_of_.extract(on_host);
    if (!on_device) return false;
    const auto of_device = host_of_.extract(*on_device);
    // Each was written with another one meanwhile, if they do not name each other.
    return of_host && of_device && of_host.mapped() == *on_device && of_device.mapped() == on_host;
  }

 private:
  Mutex mutex_;
  std::unordered_map<SegmentIndex, SegmentIndex> device_of_ FRESHET_GUARDED_BY(mutex_);
  std::unordered_map<SegmentIndex, SegmentIndex> host_of_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
