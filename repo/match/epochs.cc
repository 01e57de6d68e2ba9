// SPDX-License-Identifier: Apache-2.0
#include "repo/match/epochs.h"

#include <algorithm>
#include <thread>

namespace freshet::detail {
namespace {

/// Where this thread found its last slot: different threads start at different ones and mostly stay there.
std::size_t& hint_of_this_thread() {
  static std::atomic<std::size_t> threads{0};
  thread_local std::size_t hint = threads.fetch_add(1, std::memory_order_relaxed);
  return hint;
}

}  // namespace

std::atomic<std::uint64_t>& Epochs::claim() {
  std::size_t& hint = hint_of_this_thread();
  for (std::size_t tried = 0;; ++tried) {
    Slot& slot = slots_[hint % kSlots];
    std::uint64_t nobody = kNobody;
    if (slot.epoch.load(std::memory_order_relaxed) == kNobody &&
        slot.epoch.compare_exchange_strong(nobody, epoch_.load())) {
      return slot.epoch;
    }
    ++hint;
    if (tried % kSlots == kSlots - 1) std::this_thread::yield();
  }
}

std::uint64_t Epochs::oldest() const {
  std::uint64_t oldest = kNobody;
  for (const Slot& slot : slots_) oldest = std::min(oldest, slot.epoch.load());
  return oldest;
}

}  // namespace freshet::detail
