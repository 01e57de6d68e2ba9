// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/bisect/search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace freshet::cli {
namespace {

using Set = std::vector<std::size_t>;

/// The one nearest to the middle of (low, high) that was not skipped.
std::optional<std::size_t> middle_of(std::size_t low, std::size_t high, const std::vector<bool>& is_skipped) {
  const std::size_t middle = low + (high - low) / 2;
  for (std::size_t step = 0; step <= high - low; ++step) {
    if (middle + step < high && middle + step > low && !is_skipped[middle + step]) return middle + step;
    if (middle >= low + 1 + step && !is_skipped[middle - step]) return middle - step;
  }
  return std::nullopt;
}

/// Judges each set once.
class Memory {
 public:
  explicit Memory(const std::function<Result<Verdict>(std::span<const std::size_t>)>& judge) : judge_(judge) {}

  Result<bool> is_bad(const Set& set) {
    const auto known = known_.find(set);
    if (known != known_.end()) return known->second == Verdict::bad;
    FRESHET_ASSIGN(const Verdict verdict, judge_(set));
    known_.emplace(set, verdict);
    return verdict == Verdict::bad;
  }

 private:
  const std::function<Result<Verdict>(std::span<const std::size_t>)>& judge_;
  std::map<Set, Verdict> known_;
};

/// One of `parts` equal parts of a set, or all but it.
Set part_of(const Set& set, std::size_t part, std::size_t parts) {
  const auto begin = set.begin() + static_cast<std::ptrdiff_t>(set.size() * part / parts);
  const auto end = set.begin() + static_cast<std::ptrdiff_t>(set.size() * (part + 1) / parts);
  return {begin, end};
}
Set all_but(const Set& set, std::size_t part, std::size_t parts) {
  const auto begin = set.begin() + static_cast<std::ptrdiff_t>(set.size() * part / parts);
  const auto end = set.begin() + static_cast<std::ptrdiff_t>(set.size() * (part + 1) / parts);
  Set rest(set.begin(), begin);
  rest.insert(rest.end(), end, set.end());
  return rest;
}

/// A smaller bad set and into how many parts to split it next; nothing when no part and no rest is bad.
Result<std::optional<std::pair<Set, std::size_t>>> reduced(const Set& set, std::size_t parts, Memory& memory) {
  for (std::size_t part = 0; part < parts; ++part) {
    Set candidate = part_of(set, part, parts);
    FRESHET_ASSIGN(const bool is_bad, memory.is_bad(candidate));
    if (is_bad) return std::pair{std::move(candidate), std::size_t{2}};
  }
  for (std::size_t part = 0; parts > 2 && part < parts; ++part) {
    Set candidate = all_but(set, part, parts);
    FRESHET_ASSIGN(const bool is_bad, memory.is_bad(candidate));
    if (is_bad) return std::pair{std::move(candidate), parts - 1};
  }
  return std::nullopt;
}

}  // namespace

Result<FirstBad> find_first_bad(std::size_t count, const std::function<Result<Verdict>(std::size_t)>& judge) {
  FirstBad found{.last_good = 0, .first_bad = count - 1};
  std::vector<bool> is_skipped(count, false);
  while (const auto middle = middle_of(found.last_good, found.first_bad, is_skipped)) {
    FRESHET_ASSIGN(const Verdict verdict, judge(*middle));
    switch (verdict) {
      case Verdict::good: found.last_good = *middle; break;
      case Verdict::bad: found.first_bad = *middle; break;
      case Verdict::skipped: is_skipped[*middle] = true; break;
    }
  }
  for (std::size_t at = found.last_good + 1; at < found.first_bad; ++at) found.skipped.push_back(at);
  return found;
}

Result<std::vector<std::size_t>> find_least_bad_set(
    std::size_t count, const std::function<Result<Verdict>(std::span<const std::size_t>)>& judge) {
  Memory memory(judge);
  Set set(count);
  std::iota(set.begin(), set.end(), std::size_t{0});
  std::size_t parts = 2;
  while (set.size() >= 2) {
    FRESHET_ASSIGN(auto smaller, reduced(set, parts, memory));
    if (smaller) {
      set = std::move(smaller->first);
      parts = std::min(smaller->second, set.size());
    } else if (parts < set.size()) {
      parts = std::min(2 * parts, set.size());
    } else {
      break;
    }
  }
  return set;
}

}  // namespace freshet::cli
