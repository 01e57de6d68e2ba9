// SPDX-License-Identifier: Apache-2.0
#include "core/words/similar_names.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace freshet {
namespace {

constexpr std::size_t kNamesShown = 5;
constexpr std::size_t kDistanceMax = 3;

char folded(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Letters to insert, remove, replace or swap with the next one; kDistanceMax + 1 for more than kDistanceMax.
std::size_t distance(std::string_view a, std::string_view b) {
  const std::size_t difference = a.size() < b.size() ? b.size() - a.size() : a.size() - b.size();
  if (difference > kDistanceMax) return kDistanceMax + 1;
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = folded(a[i - 1]) == folded(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped =
          i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]);
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
    if (*std::ranges::min_element(last) > kDistanceMax) return kDistanceMax + 1;
  }
  return std::min(last[b.size()], kDistanceMax + 1);
}

std::size_t common_begin(std::string_view a, std::string_view b) {
  std::size_t length = 0;
  while (length < std::min(a.size(), b.size()) && folded(a[length]) == folded(b[length])) ++length;
  return length;
}

}  // namespace

std::string here_are(std::string_view wanted, std::span<const std::string> names) {
  if (names.empty()) return {};
  using Rank = std::tuple<std::size_t, std::size_t, std::size_t>;  // Distance, letters not begun alike, place.
  std::vector<Rank> ranks;
  ranks.reserve(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    ranks.emplace_back(distance(wanted, names[i]), wanted.size() - common_begin(wanted, names[i]), i);
  }
  const std::size_t count = std::min(names.size(), kNamesShown);
  std::partial_sort(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count), ranks.end());
  std::string text = "here are: ";
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + names[std::get<2>(ranks[i])];
  return names.size() > count ? text + ", …" : text;
}

}  // namespace freshet
