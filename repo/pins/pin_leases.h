// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Pins that end with their client. A pin of this kind names a lease: a random number of the client. A living client
/// renews its lease. If a lease was not renewed for kPinLease, its pins no longer count. A pin's record says that it
/// has a lease, and not when the lease was renewed. So a repository that is opened again gives every lease its whole
/// lifetime, and needs no clock of another process or another boot. A renewal writes nothing.
///
/// PinLeases is the book of the leases' renewals, without a clock. PinRow is the stored form of one holder's pins.
/// Private to this room.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/pins/pin_terms.h"

namespace freshet {

inline constexpr std::size_t kPinLeasesMax = std::size_t{1} << 16;
inline constexpr std::size_t kLeasesPerPinMax = 1024;

/// One thread at a time.
class PinLeases {
 public:
  /// `own` is the lease of this process' pins, which lasts as long as the book does.
  PinLeases(Time opened, PinLease own) : opened_(opened), own_(own) {}

  /// Leases without a renewal begin at this time: when clients can first renew pins.
  void set_opened(Time opened) { opened_ = opened; }
  const PinLease& own() const { return own_; }
  /// out_of_space when there are too many.
  Status renew(const PinLease& lease, Time now);
  /// When it ends if it is not renewed; nothing for one that does not end by itself.
  std::optional<Time> end_of(const PinLease& lease) const;
  bool has_ended(const PinLease& lease, Time now) const;

 private:
  Time opened_;
  const PinLease own_;
  struct Hash {
    std::size_t operator()(const PinLease& lease) const {
      return static_cast<std::size_t>(lease.high ^ (lease.low * 0x9e3779b97f4a7c15));
    }
  };
  std::unordered_map<PinLease, Time, Hash> renewed_;
};

/// All pins of one holder on one version: those that stay, and those of leases. As text: "3", or "3 LEASE:2 LEASE:1"
/// where each lease is 32 hex digits and they ascend.
struct PinRow {
  struct Leased {
    PinLease lease;
    std::uint64_t count = 0;
    bool operator==(const Leased&) const = default;
  };
  std::uint64_t stay = 0;
  std::vector<Leased> leased;  ///< Ascending.

  bool empty() const { return stay == 0 && leased.empty(); }
  /// out_of_space when a count or the number of leases would be too large.
  Status add(const std::optional<PinLease>& lease);
  /// Takes one away: of `own` if it has one, else one that stays, else another lease's. REQUIRES: !empty().
  void take(const std::optional<PinLease>& own);
  void drop_ended(const PinLeases& leases, Time now);
  bool operator==(const PinRow&) const = default;
};
std::string encode(const PinRow& row);
/// corrupt when it is none, or says that nothing is pinned.
Result<PinRow> decode_pin(std::string_view text);

}  // namespace freshet
