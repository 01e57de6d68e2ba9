// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How readers hold a served version without a lock: hazard slots (Michael, "Hazard Pointers", 2004). A fixed array of
/// cache lines; a reader owns one for as long as it holds a snapshot, and the slot names the version.
///
/// Why a named version is never freed. All operations named here are sequentially consistent, so they have one order S.
///   reader:  (1) load current = v   (2) slot := v   (3) load current; if it is v still, v is held, else again with the
///   new writer:  (a) current := w       (b) look at every slot; free v only if none names it
/// If (3) reads v, it stands before (a) in S, so (2) does, so (b) sees the slot. A slot that names v although (3) read
/// something else is never read through; it only delays v's end until the reader's next round.
/// Why the writer is woken when the last reader leaves.
///   reader:  (x) slot := null       (y) load current; if it is not v, wake the writer
/// Either (y) comes after (a) and wakes the writer, or (x) comes before (a), and so before (b), which finds the slot
/// empty.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/fork_guard.h"

namespace freshet::detail {

struct ServedVersion;
class PinTable;

struct alignas(64) PinSlot {
  std::atomic<const ServedVersion*> pinned{nullptr};  ///< Null: nobody's.
  PinTable* table = nullptr;
};

/// pin_*() and unpin(): any thread. The rest: owned by the writer's thread.
class PinTable {
 public:
  /// `wake_descriptor` is an eventfd that the writer polls; borrowed.
  PinTable(std::size_t slots, int wake_descriptor);

  struct Pin {
    const ServedVersion* version = nullptr;
    PinSlot* slot = nullptr;
  };
  /// Holds the current version. Empty when there is none, or no slot. No lock, no allocation, no system call.
  Pin pin_current();
  /// Holds `version`, which the caller keeps from being freed until this returns. Empty when there is no slot.
  Pin pin(const ServedVersion* version);
  /// Never blocks. Wakes the writer when the version is not the current one any more.
  void unpin(PinSlot& slot);

  /// Makes `version` current; the one before may be freed once nobody names it.
  void set_current(const ServedVersion* version) { current_.store(version); }
  const ServedVersion* current() const { return current_.load(); }
  bool names(const ServedVersion* version) const;
  /// To be called before looking at the slots on a wake-up: later leavers wake again.
  void acknowledge_wake() { wake_pending_.store(false); }

 private:
  PinSlot* claim(const ServedVersion* version);

  std::atomic<const ServedVersion*> current_{nullptr};
  std::atomic<bool> wake_pending_{false};
  const ForkMark mark_;
  const int wake_descriptor_;
  const std::size_t slots_count_;
  const std::unique_ptr<PinSlot[]> slots_;
};

}  // namespace freshet::detail
