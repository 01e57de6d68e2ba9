// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/pins.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "transport/subscribe/served_version.h"

namespace freshet::detail {
namespace {

// Addresses that no version has.
constexpr char kMarks[2] = {};
const ServedVersion* leaving() { return reinterpret_cast<const ServedVersion*>(&kMarks[0]); }
const ServedVersion* abandoned() { return reinterpret_cast<const ServedVersion*>(&kMarks[1]); }

/// A reader needs a few instructions from "leaving" to the end, unless the system lets another thread run in between.
constexpr std::chrono::microseconds kLeavingRound{20};

/// Of all tables, since a table's own would end with it. Held while a version ends: the books of its memory are for one
/// thread at a time.
Mutex& abandoned_mutex() {
  static Mutex* const mutex = new Mutex;  // Never ended: a snapshot may be dropped as late as the process ends.
  return *mutex;
}

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

PinTable::~PinTable() = default;

PinTable::Owner PinTable::make(std::size_t slots, int wake_descriptor) {
  return Owner(new PinTable(slots, wake_descriptor));
}

void PinTable::Abandon::operator()(PinTable* table) const { PinTable::abandon(table, {}); }

void PinTable::abandon(Owner table, std::vector<std::unique_ptr<ServedVersion>> versions) {
  abandon(table.release(), std::move(versions));
}

void PinTable::abandon(PinTable* table, std::vector<std::unique_ptr<ServedVersion>> versions) {
  table->current_.store(abandoned());
  for (std::size_t i = 0; i < table->slots_count_; ++i) {
    while (table->slots_[i].pinned.load() == leaving()) std::this_thread::sleep_for(kLeavingRound);
  }
  bool is_last = false;
  {
    const MutexLock lock(abandoned_mutex());
    table->left_ = std::move(versions);
    table->handed_over_ = true;
    is_last = table->end_unread();
  }
  if (is_last) delete table;
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
  const ServedVersion* const version = slot.pinned.load(std::memory_order_relaxed);
  slot.pinned.store(leaving());
  const ServedVersion* const current = current_.load();
  if (current != version) {
    if (current == abandoned()) return leave_abandoned(slot);
    if (!wake_pending_.exchange(true)) {
      const std::uint64_t one = 1;
      // A full counter is a pending wake-up too; an eventfd knows no other failure.
      [[maybe_unused]] const auto wrote = ::write(wake_descriptor_, &one, sizeof one);
    }
  }
  slot.pinned.store(nullptr, std::memory_order_release);  // The table may be gone after this.
}

void PinTable::leave_abandoned(PinSlot& slot) {
  bool is_last = false;
  {
    const MutexLock lock(abandoned_mutex());
    slot.pinned.store(nullptr);
    is_last = end_unread();
  }
  if (is_last) delete this;
}

/// True: no slot is in use, and none will be.
bool PinTable::end_unread() {
  if (!handed_over_) return false;
  std::erase_if(left_, [this](const auto& version) { return !names(version.get()); });
  for (std::size_t i = 0; i < slots_count_; ++i) {
    if (slots_[i].pinned.load() != nullptr) return false;
  }
  return true;
}

bool PinTable::names(const ServedVersion* version) const {
  for (std::size_t i = 0; i < slots_count_; ++i) {
    if (slots_[i].pinned.load() == version) return true;
  }
  return false;
}

}  // namespace freshet::detail
