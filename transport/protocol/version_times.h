// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How stale a served version is, in seconds: the time since a newer version was first heard of. The publisher asks
/// this of each of its subscribers, and a subscriber of itself.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "core/base/clock.h"
#include "core/model/ids.h"

namespace freshet::protocol {

/// When each of the newest versions was first heard of. One thread at a time.
class VersionTimes {
 public:
  /// So many are kept. Of an older version it is not known any more.
  static constexpr std::size_t kKeptMax = 256;

  /// That version is the newest one. A lower number than before: the numbers began anew. 0: there is none.
  void note(VersionNumber newest, Time at) {
    if (newest == 0) return times_.clear();
    if (!times_.empty() && newest == times_.back().first) return;
    if (!times_.empty() && newest < times_.back().first) times_.clear();
    times_.emplace_back(newest, at);
    if (times_.size() > kKeptMax) times_.pop_front();
  }

  /// Of the first one above that number, as far as it is known; not set: there is none.
  std::optional<Time> first_above(VersionNumber number) const {
    const auto at = std::ranges::upper_bound(times_, number, {}, &std::pair<VersionNumber, Time>::first);
    return at == times_.end() ? std::nullopt : std::optional(at->second);
  }

 private:
  std::deque<std::pair<VersionNumber, Time>> times_;  ///< Ascending.
};

/// Since when one server has not served the newest version. A server that stands still may stand for longer than
/// VersionTimes remembers, so the time is kept until the server serves another version. One thread at a time.
class Staleness {
 public:
  /// Nothing counts from before.
  void begin(Time at) { begun_ = at; }

  void update(VersionNumber serving, const VersionTimes& times) {
    const std::optional<Time> first = times.first_above(serving);
    if (!first) {
      since_.reset();
    } else if (!since_ || serving != serving_) {
      since_ = std::max(*first, begun_);
    }
    serving_ = serving;
  }

  /// The served version is served no more, and none is. A server that served the newest one is stale from now on, and
  /// not since the first version of all.
  void withdraw(Time now) {
    if (!since_) since_ = now;
    serving_ = 0;
  }

  /// 0: the newest version is served. Else it is more, also at the very time when the newer one comes.
  Duration at(Time now) const { return since_ ? std::max(now - *since_, Duration(1)) : Duration(0); }

 private:
  Time begun_{};
  VersionNumber serving_ = 0;
  std::optional<Time> since_;
};

}  // namespace freshet::protocol
