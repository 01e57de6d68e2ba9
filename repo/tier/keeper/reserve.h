// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The copies that are in a tier only until they were opened: what was told ahead, and had no room to stay. A copy is
/// behind its reader once its file was opened after the order came to it, at the tier or at the source. Copies that are
/// never opened (a wrong path, a program that ended) go too: when their stream went on far beyond them, when it ended,
/// or, for another stream, when they have been there for long.
///
/// Books alone, no I/O. Owned by whoever locks it.

#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "repo/tier/keeper/lookahead.h"

namespace freshet::tier {

class Reserve {
 public:
  static constexpr std::size_t kCopiesMax = 4096;
  /// Readers with several workers open a little out of order.
  static constexpr std::uint64_t kSlack = 256;
  static constexpr Duration kPatience = std::chrono::seconds(60);

  struct Copy {
    std::uint64_t key = 0;  ///< file_key().
    std::uint64_t bytes = 0;
    Lookahead::Stream stream = 0;
    std::uint64_t place = 0;  ///< In its stream.
    std::uint32_t opens = 0;  ///< How often its file had been opened when the order came to it.
    Time made{};
  };

  /// Replaces what is known of the same file.
  void add(const Copy& copy);
  /// 0 when it was not there.
  std::uint64_t remove(std::uint64_t key);
  void clear();
  bool contains(std::uint64_t key) const { return places_.contains(key); }
  bool is_full() const { return copies_.size() >= kCopiesMax; }
  std::uint64_t bytes() const { return bytes_; }

  /// Copies that may go so that `stream` gets `wanted` bytes, those behind their readers first; fewer when there are no
  /// more. They are still on the books. `opens_of(key)` says how often a file was opened by now.
  template <typename OpensOf, typename IsLive>
  std::vector<std::uint64_t> droppable(std::uint64_t wanted, Lookahead::Stream stream, Time now, OpensOf opens_of,
                                       IsLive is_live);

 private:
  std::list<Copy> copies_;  ///< In the order in which they were made.
  std::unordered_map<std::uint64_t, std::list<Copy>::iterator> places_;
  std::unordered_map<Lookahead::Stream, std::uint64_t> reached_;  ///< By stream: the furthest place that was opened.
  std::uint64_t bytes_ = 0;
};

template <typename OpensOf, typename IsLive>
std::vector<std::uint64_t> Reserve::droppable(std::uint64_t wanted, Lookahead::Stream stream, Time now,
                                              OpensOf opens_of, IsLive is_live) {
  if (reached_.size() > kCopiesMax) reached_.clear();
  std::vector<std::uint64_t> found;
  std::uint64_t bytes = 0;
  const auto take = [&](const Copy& copy) {
    found.push_back(copy.key);
    bytes += copy.bytes;
  };
  for (const Copy& copy : copies_) {
    if (bytes >= wanted) return found;
    if (opens_of(copy.key) == copy.opens) continue;
    std::uint64_t& reached = reached_[copy.stream];
    reached = reached < copy.place ? copy.place : reached;
    take(copy);
  }
  const std::size_t opened = found.size();
  for (const Copy& copy : copies_) {
    if (bytes >= wanted) return found;
    const auto reached = reached_.find(copy.stream);
    const bool is_passed = reached != reached_.end() && reached->second > copy.place + kSlack;
    const bool is_old = copy.stream != stream && now - copy.made > kPatience;
    if (!is_passed && !is_old && is_live(copy.stream)) continue;
    if (opened > 0 && opens_of(copy.key) != copy.opens) continue;  // Among them already.
    take(copy);
  }
  return found;
}

}  // namespace freshet::tier
