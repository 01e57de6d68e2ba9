// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Errors on request: an operation on a path fails, at once or after some that work; a file's reads end early.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/mutex.h"

namespace freshet::slow {

/// Of a fault: the process that asks dies by SIGKILL before anything is done.
inline constexpr int kDies = -1;

struct Fault {
  std::string operation;    ///< "read", "open", …; "any".
  int error = 0;            ///< An errno; 0: reads end at byte `after`; kDies: once, who asks is killed.
  std::uint64_t after = 0;  ///< How many of these operations work before it.
  std::string path;         ///< Below the mount, without a slash in front; "*" is every path.
};

/// Any thread.
class Faults {
 public:
  void add(Fault fault) {
    const MutexLock lock(mutex_);
    faults_.push_back(std::move(fault));
  }
  void clear() {
    const MutexLock lock(mutex_);
    faults_.clear();
  }
  /// Whether there is any: a path costs something to find out.
  bool any() const {
    const MutexLock lock(mutex_);
    return !faults_.empty();
  }

  /// The errno with which the operation fails, or kDies; 0 when it works.
  int error_of(const std::string& operation, const std::string& path) {
    const MutexLock lock(mutex_);
    for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
      if (fault->error == 0 || (fault->operation != "any" && fault->operation != operation)) continue;
      if (fault->path != "*" && fault->path != path) continue;
      if (fault->after > 0) {
        --fault->after;
        continue;
      }
      const int error = fault->error;
      if (error == kDies) faults_.erase(fault);
      return error;
    }
    return 0;
  }

  /// Where the reads of that file end, whatever its size is said to be.
  std::uint64_t end_of(const std::string& path) const {
    const MutexLock lock(mutex_);
    for (const Fault& fault : faults_) {
      if (fault.error == 0 && (fault.path == "*" || fault.path == path)) return fault.after;
    }
    return UINT64_MAX;
  }

 private:
  mutable Mutex mutex_;
  std::vector<Fault> faults_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::slow
