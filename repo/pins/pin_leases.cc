// SPDX-License-Identifier: Apache-2.0
#include "repo/pins/pin_leases.h"

#include <algorithm>
#include <limits>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/words/number.h"

namespace freshet {
namespace {

constexpr std::uint64_t kCountMax = std::numeric_limits<std::uint64_t>::max();

Error damaged_pin() { return Error(Code::corrupt, "the record of a pin is damaged"); }

// "LEASE:COUNT"
bool parse(std::string_view text, PinRow::Leased& leased) {
  const std::size_t colon = std::min(text.find(':'), text.size() - 1);
  leased.count = number_in<std::uint64_t>(text.substr(colon + 1)).value_or(0);
  return read_hex(text.substr(0, colon), leased.lease.high, leased.lease.low) && leased.count != 0;
}

}  // namespace

PinLease new_pin_lease() { return {.high = random_u64(system_env()), .low = random_u64(system_env())}; }

Status PinLeases::renew(const PinLease& lease, Time now) {
  if (lease == own_) return {};
  if (renewed_.size() >= kPinLeasesMax && renewed_.count(lease) == 0) {
    std::erase_if(renewed_, [&](const auto& one) { return one.second + kPinLease <= now; });
    if (renewed_.size() >= kPinLeasesMax) {
      return fail(Code::out_of_space, format("{} clients hold pins already", renewed_.size()));
    }
  }
  renewed_[lease] = now;
  return {};
}

std::optional<Time> PinLeases::end_of(const PinLease& lease) const {
  if (lease == own_) return std::nullopt;
  // One that nobody has renewed yet is of before this opening.
  const auto renewed = renewed_.find(lease);
  return (renewed == renewed_.end() ? opened_ : renewed->second) + kPinLease;
}

bool PinLeases::has_ended(const PinLease& lease, Time now) const {
  const std::optional<Time> end = end_of(lease);
  return end && *end <= now;
}

Status PinRow::add(const std::optional<PinLease>& lease) {
  const auto too_many = [] { return fail(Code::out_of_space, "too many pins"); };
  std::uint64_t* count = &stay;
  if (lease) {
    auto at = std::ranges::lower_bound(leased, *lease, {}, &Leased::lease);
    if (at == leased.end() || at->lease != *lease) {
      if (leased.size() >= kLeasesPerPinMax) return too_many();
      at = leased.insert(at, {.lease = *lease});
    }
    count = &at->count;
  }
  if (*count == kCountMax) return too_many();
  ++*count;
  return {};
}

void PinRow::take(const std::optional<PinLease>& own) {
  auto at = leased.end();
  if (own) at = std::ranges::find(leased, *own, &Leased::lease);
  if (at == leased.end() && stay != 0) {
    --stay;
    return;
  }
  if (at == leased.end()) at = leased.begin();
  if (at == leased.end()) return;
  if (--at->count == 0) leased.erase(at);
}

void PinRow::drop_ended(const PinLeases& leases, Time now) {
  std::erase_if(leased, [&](const Leased& one) { return leases.has_ended(one.lease, now); });
}

std::string encode(const PinRow& row) {
  std::string text = std::to_string(row.stay);
  for (const PinRow::Leased& one : row.leased) {
    text += format(" {:016x}{:016x}:{}", one.lease.high, one.lease.low, one.count);
  }
  return text;
}

Result<PinRow> decode_pin(std::string_view text) {
  PinRow row;
  const std::size_t first = std::min(text.find(' '), text.size());
  const auto stay = number_in<std::uint64_t>(text.substr(0, first));
  if (!stay) return fail(damaged_pin());
  row.stay = *stay;
  for (std::size_t at = first; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at + 1), text.size());
    PinRow::Leased one;
    if (!parse(text.substr(at + 1, end - at - 1), one)) return fail(damaged_pin());
    if (!row.leased.empty() && row.leased.back().lease >= one.lease) return fail(damaged_pin());
    row.leased.push_back(one);
    if (row.leased.size() > kLeasesPerPinMax) return fail(damaged_pin());
    at = end;
  }
  if (row.empty()) return fail(damaged_pin());
  return row;
}

}  // namespace freshet
