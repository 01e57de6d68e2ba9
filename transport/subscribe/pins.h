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
///   reader:  (x) slot := leaving    (y) load current; if it is not v, wake the writer    (z) slot := null
/// Either (y) comes after (a) and wakes the writer, or (x) comes before (a), and so before (b), which finds that the
/// slot does not name v.
///
/// Why a reader may leave after its writer ended. The writer's last word is (a) with "abandoned" in the place of a
/// version. Then it waits for the slots that say "leaving", and hands its versions to the table.
///   - A reader whose (y) read a version does not touch the table after (z). Its (x) comes before (a), so the writer
///     found its slot leaving or empty, and waited for (z).
///   - A reader whose (y) reads "abandoned" empties its slot under a lock, and ends the versions that no slot names.
///     The one that finds all slots empty ends the table. A slot is never taken again after (a).
/// So a reader that stays within its writer's life pays one plain store, (z), for those that do not.

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"

namespace freshet::detail {

struct ServedVersion;
class PinTable;

struct alignas(64) PinSlot {
  std::atomic<const ServedVersion*> pinned{nullptr};  ///< Null: nobody's. Or kLeaving.
  PinTable* table = nullptr;
};

/// pin_*() and unpin(): any thread. The rest: owned by the writer's thread. It lives from make() until its writer has
/// abandoned it and the last reader has left.
class PinTable {
 public:
  struct Abandon {
    void operator()(PinTable* table) const;
  };
  using Owner = std::unique_ptr<PinTable, Abandon>;
  /// `wake_descriptor` is an eventfd that the writer polls; borrowed until the table is abandoned.
  static Owner make(std::size_t slots, int wake_descriptor);
  /// The writer ends. `versions` are all that it has: each ends when nobody reads it any more, which may be now. Waits
  /// only for readers that are in the middle of leaving. REQUIRES: nobody pins any more.
  static void abandon(Owner table, std::vector<std::unique_ptr<ServedVersion>> versions);

  struct Pin {
    const ServedVersion* version = nullptr;
    PinSlot* slot = nullptr;
  };
  /// Holds the current version. Empty when there is none, or no slot. No lock, no allocation, no system call.
  Pin pin_current();
  /// Holds `version`, which the caller keeps from being freed until this returns. Empty when there is no slot.
  Pin pin(const ServedVersion* version);
  /// Wakes the writer when the version is not the current one any more. Never blocks; but after the writer's end, the
  /// last reader of a version ends it.
  void unpin(PinSlot& slot);

  /// Makes `version` current; the one before may be freed once nobody names it.
  void set_current(const ServedVersion* version) { current_.store(version); }
  const ServedVersion* current() const { return current_.load(); }
  bool names(const ServedVersion* version) const;
  /// To be called before looking at the slots on a wake-up: later leavers wake again.
  void acknowledge_wake() { wake_pending_.store(false); }

 private:
  PinTable(std::size_t slots, int wake_descriptor);
  ~PinTable();
  static void abandon(PinTable* table, std::vector<std::unique_ptr<ServedVersion>> versions);
  PinSlot* claim(const ServedVersion* version);
  void leave_abandoned(PinSlot& slot);
  bool end_unread();

  std::atomic<const ServedVersion*> current_{nullptr};
  std::atomic<bool> wake_pending_{false};
  const ForkMark mark_;
  const int wake_descriptor_;
  const std::size_t slots_count_;
  const std::unique_ptr<PinSlot[]> slots_;

  // After the writer's end; under the lock of all abandoned tables.
  bool handed_over_ = false;
  std::vector<std::unique_ptr<ServedVersion>> left_;  ///< The writer's versions that are still read.
};

}  // namespace freshet::detail
