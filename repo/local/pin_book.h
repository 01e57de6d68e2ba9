// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The pins of a repository's versions: who holds which one, and until when. Private to this room.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "repo/backend/backend.h"
#include "repo/pins/pin_leases.h"

namespace freshet {

/// Any thread. The book says what to write; the holder of the writers' turn writes it, so that no retirement comes
/// between.
class PinBook {
 public:
  PinBook(const Backend& backend, const Clock& clock)
      : backend_(backend), clock_(clock), leases_(clock.now(), new_pin_lease()) {}

  /// Leases without a renewal begin now. While a large repository is read, nobody can renew.
  void begin_leases() FRESHET_EXCLUDES(mutex_);
  Status renew(const PinLease& lease) FRESHET_EXCLUDES(mutex_);

  /// The change that makes one more pin of the version.
  Result<Backend::Batch> add(const VersionName& name, const std::string& by, const PinTerms& terms)
      FRESHET_EXCLUDES(mutex_);
  /// The change that takes one away. not_found: the version is not pinned by this holder.
  Result<Backend::Batch> take(const VersionName& name, const std::string& by, const PinTerms& terms)
      FRESHET_EXCLUDES(mutex_);
  /// The change of take() is written: wakes the calls that wait to retire.
  void tell_taken() FRESHET_EXCLUDES(mutex_);

  struct Holder {
    std::string by;
    std::optional<Time> until;  ///< Nothing for one that stays.
    std::uint64_t count = 0;    ///< 0 where their record is damaged.
  };
  /// The content of a pin's record; nothing when all its pins have ended.
  std::optional<Holder> holder_of(std::string by, std::string_view value) const FRESHET_EXCLUDES(mutex_);
  /// The holders of the version now.
  Result<std::vector<Holder>> holders_of(const VersionName& name) const;
  /// "worker7 (for 94 s, unless it renews)".
  std::string describe(const Holder& holder) const;

  /// How many pins were taken away.
  std::uint64_t taken() const FRESHET_EXCLUDES(mutex_);
  /// Until a pin was taken away since taken() was `known`, or `until`. cancelled: the caller's Interruption.
  Status wait_for_take(std::uint64_t known, Time until, const VersionName& name) FRESHET_EXCLUDES(mutex_);

 private:
  const Backend& backend_;
  const Clock& clock_;
  mutable Mutex mutex_;
  PinLeases leases_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t taken_ FRESHET_GUARDED_BY(mutex_) = 0;
  CondVar one_taken_;  ///< With mutex_.
};

}  // namespace freshet
