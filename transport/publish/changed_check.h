// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Proves what Changed::only says, for PublisherOptions::check_changed: the publisher then copies and compares every
/// tensor, and this class tells which changed ones the caller did not name.
///
/// A version that came to nothing leaves its changes to the next one, whose caller names its own alone. So what a
/// failed version named, or was refused for, is excused until a later version is sealed.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "transport/publisher.h"

namespace freshet {

/// begin() and begin_architecture(): one thread at a time. The rest: any thread.
class ChangedCheck {
 public:
  /// Not wanted by the caller or by $FRESHET_CHECK_CHANGED=1: begin() changes nothing, and check() passes.
  explicit ChangedCheck(bool is_wanted);

  /// The next capture takes every tensor, whatever its caller names.
  void begin_architecture() { is_first_ = true; }
  /// A capture's names; the kind with which to capture. Tickets grow.
  Changed::Kind begin(std::uint64_t ticket, Changed::Kind kind, std::span<const std::uint32_t> indices);
  /// A capture that begins before its publish may take tensors that the publish does not name, or leave them to the
  /// next one: the version of this ticket is not checked.
  void leave_out(std::uint64_t ticket);
  /// The capture comes to nothing.
  void fail_of(std::uint64_t ticket);
  /// The version is sealed, with all the changes before it.
  void passed(std::uint64_t ticket);
  /// In the order of tickets. failed_precondition with the names of the changed tensors that were not named.
  Status check(std::uint64_t ticket, std::span<const std::uint32_t> changed, const Architecture& architecture);

 private:
  using Names = std::optional<std::vector<std::uint32_t>>;  ///< Not set: all tensors.

  void excuse(std::uint64_t ticket, const Names& names) FRESHET_REQUIRES(mutex_);

  const bool is_wanted_;
  bool is_first_ = true;  ///< The publishing thread's.
  Mutex mutex_;
  std::map<std::uint64_t, Names> named_ FRESHET_GUARDED_BY(mutex_);            ///< By ticket.
  std::map<std::uint32_t, std::uint64_t> excused_ FRESHET_GUARDED_BY(mutex_);  ///< By tensor, the last ticket.
  std::set<std::uint64_t> unchecked_ FRESHET_GUARDED_BY(mutex_);               ///< Tickets that are left out.
  std::uint64_t all_excused_ FRESHET_GUARDED_BY(mutex_) = 0;                   ///< By that ticket; 0: not all are.
};

}  // namespace freshet
