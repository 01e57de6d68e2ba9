// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/terms/checkpoint_copies.h"

#include <utility>

#include "core/base/deadline.h"

namespace freshet {

bool CheckpointCopies::wait(Duration at_most) const {
  const Time deadline = deadline_in(at_most);
  const MutexLock lock(mutex_);
  while (under_way_ > 0) {
    if (!changed_.wait_until(mutex_, deadline)) return under_way_ == 0;
  }
  return true;
}

void CheckpointCopies::add(const std::vector<std::size_t>& pieces) {
  const MutexLock lock(mutex_);
  ++under_way_;
  pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
}

void CheckpointCopies::complete(Status copied) {
  const MutexLock lock(mutex_);
  --under_way_;
  if (copied_) copied_ = std::move(copied);
  changed_.notify_all();
}

std::vector<std::size_t> CheckpointCopies::pieces() const {
  const MutexLock lock(mutex_);
  return pieces_;
}

Status CheckpointCopies::copied() const {
  const MutexLock lock(mutex_);
  return copied_;
}

}  // namespace freshet
