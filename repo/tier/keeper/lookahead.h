// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The files that programs will open next, as they said. Each program tells its own order, a stream; streams take
/// turns. All of it is a hint: paths may be wrong, never be opened, or come too late. The keeper forgets what comes too
/// late: once a program opened a path at the source, the paths before it in its stream are behind the program.
///
/// Books alone, no I/O. Owned by whoever locks it.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::tier {

class Lookahead {
 public:
  using Stream = std::uint64_t;
  static constexpr std::size_t kToldMax = 1'000'000;
  static constexpr std::size_t kToldBytesMax = std::size_t{128} << 20;
  static constexpr std::size_t kStreamsMax = 256;

  struct Told {
    Stream stream = 0;
    std::uint64_t place = 0;  ///< In its stream; grows.
    std::string path;
    int tries = 0;  ///< How often it was too young.
  };

  /// A new stream. out_of_space when there are too many.
  Result<Stream> begin();
  /// One more path. out_of_space when too much waits; a stream that is not there tells nothing.
  Status tell(Stream stream, std::string path);
  /// The stream's paths that nobody took are forgotten.
  void anew(Stream stream);
  /// The program of the stream has ended: the paths stay, and the stream ends after them.
  void leave(Stream stream);
  void end(Stream stream);

  /// A program opened that at the source. True when something that waited is behind a program now.
  bool missed(const std::string& path);

  bool has_next() const { return waiting_ > 0; }
  /// The next one may be taken: it is not blocked, and old enough by now.
  bool may_begin(Time now) const { return has_next() && !blocked_ && now >= not_before_; }
  /// When the next one may be taken, if time is all that it waits for.
  std::optional<Time> begins_at(Time now) const;
  /// REQUIRES: has_next().
  Told next();
  /// It could not be done yet: it is next again.
  void put_back(Told told);
  /// The next one is too young until then.
  void wait_until(Time time) { not_before_ = std::max(not_before_, time); }
  /// The next one, of so many bytes, has no room yet.
  struct Blocked {
    std::uint64_t bytes = 0;
    Stream stream = 0;
  };
  void block(const Blocked& blocked) { blocked_ = blocked; }
  void unblock() { blocked_.reset(); }
  const std::optional<Blocked>& blocked() const { return blocked_; }
  /// It was done, whatever came of it.
  void done(Stream stream);

  bool is_empty() const { return streams_.empty(); }
  bool is_live(Stream stream) const { return streams_.contains(stream); }
  std::size_t waiting() const { return waiting_; }

 private:
  struct Waiting {
    std::uint64_t place = 0;
    std::string path;
    int tries = 0;
  };
  struct Order {
    std::deque<Waiting> waiting;  ///< By place.
    std::uint64_t next_place = 1;
    std::uint64_t passed = 0;                                 ///< Up to this place all is behind the program.
    std::unordered_map<std::uint64_t, std::uint64_t> places;  ///< Of a path's hash: where it waits first.
    bool was_left = false;
  };

  void drop_first(Order& order);
  void end_if_done(std::map<Stream, Order>::iterator at);

  std::map<Stream, Order> streams_;
  Stream last_begun_ = 0;
  Stream last_served_ = 0;
  std::size_t waiting_ = 0;
  std::size_t waiting_bytes_ = 0;
  std::optional<Blocked> blocked_;
  Time not_before_{};
};

}  // namespace freshet::tier
