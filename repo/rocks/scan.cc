// SPDX-License-Identifier: Apache-2.0
#include "repo/rocks/scan.h"

#include <algorithm>

#include "core/base/format.h"
#include "repo/rocks/store.h"

namespace freshet {
namespace {

/// More holes than that in one walk are one hole, up to the end.
constexpr std::size_t kHolesMax = 4096;
/// Where a hole ends is found for keys that are as much longer than the last one, or than the prefix. Of longer ones
/// some may be missed behind it.
constexpr std::size_t kLongerBytes = 16;
constexpr std::size_t kUsualKeyBytes = 96;

using Number = std::string;  ///< Big-endian, of a fixed length: so numbers are in order as keys are.

// False when it has no room for it.
bool add_power_of_two(Number& number, std::size_t power) {
  const std::size_t from_end = power / 8;
  if (from_end >= number.size()) return false;
  unsigned carry = 1U << (power % 8);
  for (std::size_t i = number.size() - from_end; i > 0 && carry != 0; --i) {
    const unsigned sum = static_cast<unsigned char>(number[i - 1]) + carry;
    number[i - 1] = static_cast<char>(sum & 0xff);
    carry = sum >> 8;
  }
  return carry == 0;
}

Number middle(const Number& low, const Number& high) {
  Number sum(low.size(), '\0');
  unsigned carry = 0;
  for (std::size_t i = low.size(); i > 0; --i) {
    carry += static_cast<unsigned char>(low[i - 1]) + static_cast<unsigned char>(high[i - 1]);
    sum[i - 1] = static_cast<char>(carry & 0xff);
    carry >>= 8;
  }
  for (char& digit : sum) {
    const unsigned value = static_cast<unsigned char>(digit) | (carry << 8);
    digit = static_cast<char>(value >> 1);
    carry = value & 1;
  }
  return sum;
}

// An iterator that stands in a damaged block takes the next key for one of that block, even where it stands just behind
// it. So it is sent elsewhere first.
bool is_readable_from(rocksdb::Iterator& at, const std::string& key) {
  if (!at.status().ok()) at.SeekToFirst();
  at.Seek(key);
  return at.Valid() || at.status().ok();
}

// Leaves the iterator at the first key behind the damage that follows `last`, or at the end. False when all that
// follows within the prefix is damaged. Steps grow, so that what lies between two damaged blocks is found; then the
// border is closed in on.
bool pass_over(rocksdb::Iterator& at, const std::string& last, std::string_view prefix) {
  Number origin = last;
  origin.resize(std::max(last.size() + kLongerBytes, prefix.size() + kUsualKeyBytes), '\0');
  Number damaged = origin;
  for (std::size_t power = 0;; ++power) {
    Number next = origin;
    if (!add_power_of_two(next, power) || !std::string_view(next).starts_with(prefix)) return false;
    if (!is_readable_from(at, next)) {
      damaged = std::move(next);
      continue;
    }
    Number readable = std::move(next);
    for (Number half = middle(damaged, readable); half != damaged; half = middle(damaged, readable)) {
      (is_readable_from(at, half) ? readable : damaged) = half;
    }
    // Keys may be shorter than these numbers: what ends with zeros stands behind the same without them.
    Number shorter = readable;
    while (shorter.size() > prefix.size() && shorter.back() == '\0') {
      shorter.pop_back();
      if (!is_readable_from(at, shorter)) break;
      readable = shorter;
    }
    return is_readable_from(at, readable);
  }
}

}  // namespace

Status scan_readable(rocksdb::Iterator& at, std::string_view prefix,
                     const std::function<bool(std::string_view key, std::string_view value)>& each,
                     std::vector<Hole>& holes) {
  std::string last(prefix);
  at.Seek(rocksdb::Slice(prefix.data(), prefix.size()));
  while (true) {
    for (; at.Valid() && at.key().starts_with(rocksdb::Slice(prefix.data(), prefix.size())); at.Next()) {
      last.assign(at.key().data(), at.key().size());
      if (!each(last, at.value().ToStringView())) return {};
    }
    const rocksdb::Status ended = at.status();
    if (!ended.IsCorruption()) return status_of(ended, "scan");
    Hole hole{.after = last, .before = {}, .reason = ended.ToString()};
    const bool passed = holes.size() < kHolesMax && pass_over(at, last, prefix);
    const bool goes_on = passed && at.Valid() && at.key().starts_with(rocksdb::Slice(prefix.data(), prefix.size()));
    if (goes_on) hole.before.assign(at.key().data(), at.key().size());
    holes.push_back(std::move(hole));
    if (!goes_on) return {};
  }
}

Status status_of(const std::vector<Hole>& holes, std::string_view what) {
  if (holes.empty()) return {};
  const std::string more = holes.size() == 1 ? "" : format(" (and {} places more)", holes.size() - 1);
  return fail(Code::corrupt, format("{}: {}{}", what, holes.front().reason, more));
}

}  // namespace freshet
