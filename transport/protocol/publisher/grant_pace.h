// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How often one session is granted the same again.

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>

#include "core/base/clock.h"
#include "core/model/ids.h"
#include "transport/channel_kind.h"

namespace freshet::protocol {

/// Two grants are equal if all of this is equal.
struct Granting {
  VersionNumber number = 0;
  ChannelKind channel = ChannelKind::shm;
  std::uint64_t epoch = 0;
  auto operator<=>(const Granting&) const = default;
};

/// Handed a time. One thread at a time.
class GrantPace {
 public:
  /// When it may be granted. `now`: it is granted, and that is noted. Later: an equal grant is less than `again` old,
  /// and the session has used up the `at_once` equal grants that it saves up, one in `again`.
  Time granted_at(const Granting& granting, Time now, Duration again, std::size_t at_once) {
    std::erase_if(granted_, [&](const auto& granted) { return now - granted.second >= again; });
    const auto [before, is_new] = granted_.try_emplace(granting, now);
    if (is_new) return now;
    const Time until = std::max(equal_grants_until_, now) + again;
    const Time at = until - static_cast<Duration::rep>(at_once) * again;
    if (at > now) return std::min(at, before->second + again);
    equal_grants_until_ = until;
    before->second = now;
    return now;
  }

 private:
  std::map<Granting, Time> granted_;  ///< Lately.
  Time equal_grants_until_{};         ///< To which the equal grants so far reach, one in `again`.
};

}  // namespace freshet::protocol
