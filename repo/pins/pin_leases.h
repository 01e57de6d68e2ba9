// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Pins that end with whoever took them. Such a pin names a lease, a random number of its client's; the client renews
/// the lease while it lives, and a pin whose lease was not renewed for kPinLease holds nobody up any more. What is
/// durable is that a pin has a lease, not when it was renewed: a repository that is opened again gives every lease a
/// whole lifetime, so that no clock of another process or another boot counts. Renewing writes nothing.
///
/// PinLeases is the book of who renewed when, without a clock; PinRow is what is stored of one holder's pins. Private
/// to this room.

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

  /// Leases that nobody has renewed yet begin then: when pins can be renewed at all.
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
