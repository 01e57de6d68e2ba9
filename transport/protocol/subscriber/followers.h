// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The followers of a subscriber: subscribers behind a relay, and a program that puts versions to use itself. Each Ping
/// tells the publisher how many of them are behind. One thread at a time.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "transport/protocol/messages.h"

namespace freshet::protocol {

class Followers {
 public:
  /// Of a relay: under which epochs those who follow it serve, and how many do not follow behind other relays of these.
  void set(std::vector<std::uint64_t> epochs, std::uint64_t behind_those) {
    epochs_ = std::move(epochs);
    behind_those_ = behind_those;
  }
  /// Of a program that puts versions to use itself: which one it has.
  void applied(VersionNumber number) { applied_ = number; }

  /// How many have not come to what is served here.
  std::uint32_t behind(VersionNumber serving, std::uint64_t epoch) const {
    const auto late = static_cast<std::uint64_t>(std::ranges::count_if(epochs_, [&](auto its) { return its < epoch; }));
    // Numbers, not epochs: an epoch may advance with the version that is in use already.
    const bool applies_late = applied_ && *applied_ != serving;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(late + behind_those_ + (applies_late ? 1U : 0U), kBehindMax));
  }

 private:
  std::vector<std::uint64_t> epochs_;
  std::uint64_t behind_those_ = 0;
  std::optional<VersionNumber> applied_;  ///< Not set: what is served is in use.
};

}  // namespace freshet::protocol
