// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/crew.h"

#include <system_error>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/interruption.h"

namespace freshet::bucket {
namespace {

/// The owner looks around at least so often; each piece has its own deadline.
constexpr Duration kCrewLook = std::chrono::seconds(1);

}  // namespace

Crew::~Crew() {
  const MutexLock lock(mutex_);
  end_with(fail(Code::cancelled, "the writer ended"));
  closing_ = true;
  changed_.notify_all();
}

Status Crew::add(std::function<Status()> work) {
  const MutexLock lock(mutex_);
  wait(threads_max_ - 1);
  FRESHET_TRY(status_);
  waiting_.push_back(std::move(work));
  ++not_done_;
  if (not_done_ > threads_.size()) {
    try {
      threads_.emplace_back([this] { run(); });
    } catch (const std::system_error& error) {
      // Fewer threads do the same work.
      if (threads_.empty()) end_with(fail(Code::out_of_space, std::string("start a thread: ") + error.what()));
    }
  }
  changed_.notify_all();
  return status_;
}

Status Crew::finish() {
  const MutexLock lock(mutex_);
  wait(0);
  return status_;
}

void Crew::wait(std::size_t pieces) {
  while (not_done_ > pieces) {
    // Also after a failure: the pieces under way read their bytes until they end.
    changed_.wait_until(mutex_, Interruption::next_look(deadline_in(kCrewLook)));
    if (!status_ || !Interruption::is_possible()) continue;
    mutex_.unlock();
    Status wanted = Interruption::check();
    mutex_.lock();
    if (!wanted) end_with(std::move(wanted));
  }
}

void Crew::end_with(Status failure) {
  if (status_) status_ = std::move(failure);
  stop_.request_stop();
  not_done_ -= waiting_.size();
  waiting_.clear();
}

void Crew::run() {
  const StopInterrupts interrupts(stop_.get_token());
  const MutexLock lock(mutex_);
  while (true) {
    while (waiting_.empty() && !closing_) changed_.wait(mutex_);
    if (waiting_.empty()) return;
    std::function<Status()> work = std::move(waiting_.front());
    waiting_.pop_front();
    mutex_.unlock();
    Status done = work();
    work = nullptr;
    mutex_.lock();
    --not_done_;
    if (!done) end_with(std::move(done));
    changed_.notify_all();
  }
}

}  // namespace freshet::bucket
