// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The files that somebody asked the keeper for, and that it has not begun: what programs opened, what is prefetched,
/// and what was too young for a copy.
///
/// Books alone, no I/O. Owned by whoever locks it.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::tier {

class Requests {
 public:
  enum class Asked : std::uint8_t { taken, known, lost };
  /// A program opened that file at the source. Known: the same file is asked for once at a time, since a program that
  /// waits for its copy asks again and again. Lost: too many wait.
  Asked ask(std::string path);
  /// It was handled: it may be asked for again.
  void done(const std::string& path) { wanted_.erase(path); }

  /// A file or folder to prefetch. out_of_space when too many wait.
  Status add_root(std::string path);
  std::optional<std::string> next_root();
  /// A file to prefetch. REQUIRES: has_room_ahead().
  void add_ahead(std::string path) { ahead_.push_back(std::move(path)); }
  bool has_room_ahead() const;

  /// The file is too young: it is due at `time`. False: it was too often, and is given up; its next open asks again.
  bool defer(const std::string& path, Time time);
  void forget_deferral(const std::string& path) { deferred_.erase(path); }
  /// The next deferred file, if it is due by now.
  std::optional<std::string> next_due(Time now);
  std::optional<Time> next_due_at() const;

  struct Request {
    std::string path;
    bool was_asked = false;  ///< Then done() follows.
  };
  bool has_next() const { return !asked_.empty() || !ahead_.empty(); }
  /// Files that programs opened come first. REQUIRES: has_next().
  Request next();

  bool has_roots() const { return !roots_.empty(); }
  bool is_empty() const { return !has_next() && roots_.empty() && later_.empty(); }
  std::size_t files() const { return asked_.size() + ahead_.size() + later_.size(); }

 private:
  std::deque<const std::string*> asked_;  ///< Into wanted_, whose texts stay where they are.
  std::size_t asked_bytes_ = 0;
  std::unordered_set<std::string> wanted_;  ///< What stands in asked_ or is being handled.
  std::deque<std::string> ahead_;
  std::deque<std::string> roots_;
  std::multimap<Time, std::string> later_;
  struct Deferred {
    int times = 0;
    bool waits = false;  ///< It stands in later_.
  };
  std::unordered_map<std::string, Deferred> deferred_;  ///< Files that were too young for a copy, by path.
};

}  // namespace freshet::tier
