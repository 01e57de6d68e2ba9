// SPDX-License-Identifier: Apache-2.0
#include "repo/parts/part_books.h"

#include <iterator>

#include "core/base/format.h"

namespace freshet {

bool PartBooks::is_free(std::uint64_t begin, std::uint64_t end) const {
  const auto after = covered_.lower_bound(begin);
  if (after != covered_.end() && after->first < end) return false;
  return after == covered_.begin() || std::prev(after)->second <= begin;
}

void PartBooks::cover(std::uint64_t begin, std::uint64_t end) {
  bytes_ += end - begin;
  auto after = covered_.lower_bound(begin);
  if (after != covered_.end() && after->first == end) {
    end = after->second;
    after = covered_.erase(after);
  }
  if (after != covered_.begin() && std::prev(after)->second == begin) {
    std::prev(after)->second = end;
  } else {
    covered_.emplace_hint(after, begin, end);
  }
}

Result<bool> PartBooks::add(const TensorPart& part, const Digest& digest) {
  const Runs runs{
      .offset = part.offset, .count = part.count, .stride = part.count == 1 ? 0 : part.stride, .length = part.length};
  const auto same = parts_.find(runs);
  if (same != parts_.end()) {
    if (same->second == digest) return false;
    return fail(Code::already_exists, format("the bytes from {} on came already, and were other bytes", part.offset));
  }
  for (std::uint64_t i = 0; i < runs.count; ++i) {
    const std::uint64_t begin = runs.offset + i * runs.stride;
    if (is_free(begin, begin + runs.length)) continue;
    return fail(Code::already_exists,
                format("the part overlaps another one in the bytes from {} to {}", begin, begin + runs.length));
  }
  for (std::uint64_t i = 0; i < runs.count; ++i) {
    const std::uint64_t begin = runs.offset + i * runs.stride;
    cover(begin, begin + runs.length);
  }
  parts_.emplace(runs, digest);
  return true;
}

PartBooks::Hole PartBooks::first_hole() const {
  std::uint64_t begin = 0;
  auto next = covered_.begin();
  if (next != covered_.end() && next->first == 0) begin = (next++)->second;
  return {.begin = begin, .end = next == covered_.end() ? tensor_bytes_ : next->first};
}

}  // namespace freshet
