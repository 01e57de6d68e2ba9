// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/pins.h"

#include <unistd.h>

namespace freshet::detail {
namespace {

/// Where this thread found its last slot: different threads start at different ones and mostly stay there.
std::size_t& hint_of_this_thread() {
  static std::atomic<std::size_t> threads{0};
  thread_local std::size_t hint = threads.fetch_add(1, std::memory_order_relaxed) * 7;
  return hint;
}

}  // namespace

PinTable::PinTable(std::size_t slots, int wake_descriptor)
    : wake_descriptor_(wake_descriptor), slots_count_(slots), slots_(std::make_unique<PinSlot[]>(slots)) {
  for (std::size_t i = 0; i < slots_count_; ++i) slots_[i].table = this;
}

PinSlot* PinTable::claim(const ServedVersion* version) {
  std::size_t& hint = hint_of_this_thread();
  std::size_t at = hint % slots_count_;
  for (std::size_t tried = 0; tried < slots_count_; ++tried, at = at + 1 == slots_count_ ? 0 : at + 1) {
    const ServedVersion* nobody = nullptr;
    if (slots_[at].pinned.load(std::memory_order_relaxed) == nullptr &&
        slots_[at].pinned.compare_exchange_strong(nobody, version)) {
      hint = at;
      return &slots_[at];
    }
  }
  return nullptr;
}

PinTable::Pin PinTable::pin_current() {
  const ServedVersion* version = current_.load();
  if (version == nullptr) return {};
  PinSlot* slot = claim(version);
  if (slot == nullptr) return {};
  for (;;) {
    const ServedVersion* now = current_.load();
    if (now == version) return {.version = version, .slot = slot};
    version = now;
    slot->pinned.store(version);
  }
}

PinTable::Pin PinTable::pin(const ServedVersion* version) {
  PinSlot* slot = claim(version);
  return slot == nullptr ? Pin{} : Pin{.version = version, .slot = slot};
}

void PinTable::unpin(PinSlot& slot) {
  if (mark_.is_inherited()) return;  // A forked child holds nothing, and wakes nobody.
  const ServedVersion* version = slot.pinned.load(std::memory_order_relaxed);
  slot.pinned.store(nullptr);
  if (current_.load() == version || wake_pending_.exchange(true)) return;
  const std::uint64_t one = 1;
  // A full counter is a pending wake-up too; an eventfd knows no other failure.
  [[maybe_unused]] const auto wrote = ::write(wake_descriptor_, &one, sizeof one);
}

bool PinTable::names(const ServedVersion* version) const {
  for (std::size_t i = 0; i < slots_count_; ++i) {
    if (slots_[i].pinned.load() == version) return true;
  }
  return false;
}

}  // namespace freshet::detail
