// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/current_keeper.h"

#include <utility>

#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {

void CurrentKeeper::swap(const CurrentVersion& expected, const CurrentVersion& desired) {
  claim_->swap_current(expected, desired, [keeper = shared_from_this(), expected](Result<CurrentVersion> answer) {
    keeper->on_answer(expected, std::move(answer));
  });
}

void CurrentKeeper::stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
}

void CurrentKeeper::on_answer(const CurrentVersion& expected, Result<CurrentVersion> answer) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  // Another record than was expected is an answer too: it says what is current. A claim that was lost is none.
  if (!answer && answer.error().code() == Code::failed_precondition) {
    if (const CurrentVersion actual = claim_->current(); actual != expected) answer = actual;
  }
  hub_->current_swapped(model_, std::move(answer));
}

}  // namespace freshet
