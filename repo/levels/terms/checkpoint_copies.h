// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"

namespace freshet {

/// The copies of one version's tensors out of GPUs' memory, at one rank. They run behind the loop, and end in every
/// case: at the latest when the checkpointer is gone. The object may live longer than the checkpointer. Any thread.
class CheckpointCopies {
 public:
  CheckpointCopies() = default;
  CheckpointCopies(const CheckpointCopies&) = delete;
  CheckpointCopies& operator=(const CheckpointCopies&) = delete;

  /// True: each copy that was queued so far has ended, well or not. No byte of the tensors is read any more.
  bool wait(Duration at_most) const FRESHET_EXCLUDES(mutex_);

  // For the checkpointer.
  /// Copies into these pieces of the rank's share are queued together; one complete() will follow.
  void add(const std::vector<std::size_t>& pieces) FRESHET_EXCLUDES(mutex_);
  void complete(Status copied) FRESHET_EXCLUDES(mutex_);
  /// All pieces that were added.
  std::vector<std::size_t> pieces() const FRESHET_EXCLUDES(mutex_);
  /// The first error of a copy.
  Status copied() const FRESHET_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::size_t under_way_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::vector<std::size_t> pieces_ FRESHET_GUARDED_BY(mutex_);
  Status copied_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet
