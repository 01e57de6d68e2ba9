// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which segments of host memory and of device memory have the same bytes. A capture that acquires both of a pair, to
/// write them again, makes the new bytes of the one in device memory, and takes the same changes to the other. Nobody
/// reads a segment that was acquired, so both are updated in place. A change's sum tells nothing of the bytes that it
/// does not touch: after kUpdatesMax updates the host's segment gets all bytes once.

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/arena/arena.h"
#include "core/base/mutex.h"

namespace freshet {

/// Any thread.
class SegmentPairs {
 public:
  static constexpr std::uint32_t kUpdatesMax = 64;  ///< In a row.

  /// Both have the same bytes from now on, until take() names one of them.
  void note(SegmentIndex on_host, SegmentIndex on_device) FRESHET_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    device_of_[on_host].segment = on_device;
    host_of_[on_device] = on_host;
  }

  /// Both will be written; `on_device` may be none. Returns whether they are a pair now. Each was acquired by the
  /// caller. After kUpdatesMax times yes it says no once.
  bool take(SegmentIndex on_host, std::optional<SegmentIndex> on_device) FRESHET_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto of_host = device_of_.find(on_host);
    const auto of_device = on_device ? host_of_.extract(*on_device) : decltype(host_of_)::node_type();
    if (of_host == device_of_.end()) return false;
    // Each was written with another one meanwhile, if they do not name each other.
    const bool are_pair = of_device && of_host->second.segment == on_device && of_device.mapped() == on_host;
    of_host->second.segment.reset();
    if (are_pair && of_host->second.updates++ < kUpdatesMax) return true;
    device_of_.erase(of_host);
    return false;
  }

 private:
  struct OnDevice {
    std::optional<SegmentIndex> segment;
    std::uint32_t updates = 0;  ///< Since it was no pair.
  };

  Mutex mutex_;
  std::unordered_map<SegmentIndex, OnDevice> device_of_ FRESHET_GUARDED_BY(mutex_);
  std::unordered_map<SegmentIndex, SegmentIndex> host_of_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
