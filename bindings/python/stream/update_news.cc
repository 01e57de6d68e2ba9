// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/stream/subscriber.h"
#include "core/base/clock.h"
#include "core/base/deadline.h"

namespace freshet::python {

void UpdateNews::wake() {
  changed_.notify_all();
  for (const Wake& descriptor : descriptors_) descriptor.wake();
}

void UpdateNews::tell(const Update& update) {
  const MutexLock lock(mutex_);
  if (past_.size() == kPastMax) past_.pop_front();
  past_.push_back({.version = update.version, .served_unix_ns = system_clock().unix_ns(), .latency = update.latency});
  if (queued_) {
    if (updates_.size() == kQueuedMax) updates_.pop_front();
    updates_.push_back(update);
  }
  wake();
}

void UpdateNews::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  wake();
}

std::vector<UpdateNews::Past> UpdateNews::past() {
  const MutexLock lock(mutex_);
  return {past_.begin(), past_.end()};
}

Result<Update> UpdateNews::next(Duration at_most) {
  const Time deadline = deadline_in(at_most);
  const MutexLock lock(mutex_);
  while (updates_.empty()) {
    if (closed_) return fail(Code::failed_precondition, "the subscriber was closed");
    if (!changed_.wait_until(mutex_, deadline) && updates_.empty() && !closed_) {
      return fail(Code::timed_out, "no update came");
    }
  }
  Update update = std::move(updates_.front());
  updates_.pop_front();
  return update;
}

Result<int> UpdateNews::add_descriptor() {
  const MutexLock lock(mutex_);
  FRESHET_ASSIGN(Wake descriptor, Wake::open());
  if (closed_) descriptor.wake();
  descriptors_.push_back(std::move(descriptor));
  return descriptors_.back().descriptor();
}

void UpdateNews::remove_descriptor(int descriptor) {
  const MutexLock lock(mutex_);
  std::erase_if(descriptors_, [&](const Wake& one) { return one.descriptor() == descriptor; });
}

}  // namespace freshet::python
