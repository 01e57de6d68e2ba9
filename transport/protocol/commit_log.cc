#include "transport/protocol/commit_log.h"

#include <algorithm>

#include "core/check.h"

namespace freshet::protocol {

void CommitLog::append(VersionNumber number) {
  if (runs_.empty()) {
    runs_.push_back({.first = number, .length = 1, .before = 0});
    return;
  }
  Run& last = runs_.back();
  FRESHET_CHECK(number >= last.first + last.length);
  if (number == last.first + last.length) {
    ++last.length;
  } else {
    runs_.push_back({.first = number, .length = 1, .before = last.before + last.length});
  }
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
  const std::uint64_t committed = count_up_to(next) - count_up_to(after) - 1;
  const VersionNumber first = runs_.front().first;
  return after < first ? committed + (first - 1 - after) : committed;
}

}  // namespace freshet::protocol
