// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How far a subscriber has come: what it serves, and up to where it has taken what its publisher has. One thread at a
/// time.

#include <cstdint>
#include <optional>
#include <set>

#include "transport/protocol/messages.h"

namespace freshet::protocol {

class Position {
 public:
  /// `after`, for `every`: begin behind that version, which that incarnation numbered (0: not known).
  Position(Mode mode, VersionNumber after, std::uint64_t after_incarnation);

  /// Every version up to it was installed, refused or skipped; for `latest`, every pair up to (epoch(), number()).
  VersionNumber number() const { return number_; }
  std::uint64_t epoch() const { return epoch_; }
  bool is_before(const Current& pair) const { return pair.comes_after(epoch_, number_); }
  VersionNumber serving() const { return serving_; }
  std::uint64_t serving_epoch() const { return serving_epoch_; }  ///< Of a `latest` subscriber.
  bool serves(const Current& pair) const { return pair.epoch == serving_epoch_ && pair.version == serving_; }
  VersionNumber highest_seen() const { return highest_seen_; }
  std::uint64_t gaps() const { return gaps_; }
  std::uint64_t given_up() const { return given_up_; }
  std::size_t untaken() const { return delivered_.size(); }
  /// `every`: the incarnation with which the publisher's numbers last began anew. 0: they go on after the first
  /// position. Nothing before the first Welcome.
  std::optional<std::uint64_t> numbers_since() const { return numbers_since_; }
  bool is_owed_all() const { return owed_all_ && number_ == 0; }

  /// True: its numbers began anew, and so does the position.
  bool begins_anew_with(const Welcome& welcome);
  /// True when another epoch is served than before.
  bool on_served(VersionNumber number, std::uint64_t epoch, std::uint64_t gap_before, std::uint64_t incarnation);
  /// The staged version is served now.
  void on_swapped(VersionNumber number);
  /// The served version was activated anew, under that epoch.
  void on_activated(std::uint64_t epoch);
  /// The served version is not to be believed: the subscriber has none any more.
  void on_refuted();
  /// Notes that this version cannot be had.
  void pass_over(VersionNumber number, std::uint64_t epoch, std::uint64_t gap_before);
  /// `every`: the application took it. False: it had already.
  bool on_taken(VersionNumber number) { return delivered_.erase(number) != 0; }
  /// False: that was known.
  bool see(VersionNumber number);

 private:
  const Mode mode_;
  VersionNumber number_ = 0;
  std::uint64_t epoch_ = 0;
  std::uint64_t incarnation_ = 0;  ///< For `every`: that numbered number_; 0: not known.
  bool owed_all_ = false;          ///< number_ is where an incarnation begins, and all of it is to come.
  std::optional<std::uint64_t> numbers_since_;
  VersionNumber serving_ = 0;
  std::uint64_t serving_epoch_ = 0;
  VersionNumber highest_seen_ = 0;
  std::uint64_t gaps_ = 0;
  std::uint64_t given_up_ = 0;  ///< `every`: versions that the next one's gap counts beside what its publisher dropped.
  std::set<VersionNumber> delivered_;  ///< `every`: not yet taken by the application.
};

}  // namespace freshet::protocol
