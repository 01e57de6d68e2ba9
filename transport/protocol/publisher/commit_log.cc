// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/publisher/commit_log.h"

#include <algorithm>

#include "core/base/check.h"

namespace freshet::protocol {

void CommitLog::append(VersionNumber number, std::uint64_t missed) {
  if (runs_.empty()) {
    runs_.push_back({.first = number, .length = 1});
    return;
  }
  Run& last = runs_.back();
  const VersionNumber next = last.first + last.length;
  FRESHET_CHECK(number >= next);
  if (number == next) {
    ++last.length;
    return;
  }
  missed = std::min(missed, number - next);
  runs_.push_back({.first = number,
                   .length = 1,
                   .before = last.before + last.length,
                   .missed = missed,
                   .missed_up_to = last.missed_up_to + missed});
}

std::uint64_t CommitLog::count_up_to(VersionNumber number) const {
  const auto starts_after = [](VersionNumber value, const Run& run) { return value < run.first; };
  const auto next = std::upper_bound(runs_.begin(), runs_.end(), number, starts_after);
  if (next == runs_.begin()) return 0;
  const Run& run = *std::prev(next);
  return run.before + std::min(run.length, number - run.first + 1);
}

std::uint64_t CommitLog::missed_between(VersionNumber after, VersionNumber next) const {
  FRESHET_CHECK(!runs_.empty() && after < next);
  if (after == 0) return 0;
  const std::uint64_t committed = count_up_to(next - 1) - count_up_to(after);
  const VersionNumber first = std::min(runs_.front().first, next);
  return committed + missed_in(after, next) + (after < first ? first - 1 - after : 0);
}

std::uint64_t CommitLog::missed_from_start(VersionNumber next) const {
  return count_up_to(next - 1) + missed_in(/*after=*/0, next);
}

std::uint64_t CommitLog::missed_in(VersionNumber after, VersionNumber next) const {
  const auto starts_after = [](VersionNumber value, const Run& run) { return value < run.first; };
  const auto first = std::upper_bound(runs_.begin(), runs_.end(), after, starts_after);
  const auto end = std::upper_bound(runs_.begin(), runs_.end(), next, starts_after);
  if (first == end) return 0;
  // `after` may lie among the numbers that the first of them missed: those up to it are not missed.
  const std::uint64_t in_first = std::min(first->missed, first->first - 1 - after);
  return std::prev(end)->missed_up_to - first->missed_up_to + in_first;
}

}  // namespace freshet::protocol
