// SPDX-License-Identifier: Apache-2.0
#include "transport/protocol/channel_selector.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"

namespace freshet::protocol {
namespace {

constexpr std::uint64_t kMeasuredBytesMin = std::uint64_t{1} << 20;
constexpr double kNewestWeight = 0.3;
/// A measured channel must be that much faster than the one before it in the order, or it is not worth a change.
constexpr double kClearlyFaster = 1.5;
constexpr int kDoublingsMax = 10;

int preference(ChannelKind kind) { return traits_of(kind).preference; }

double mebibytes(double bytes) { return bytes / static_cast<double>(1u << 20); }

std::string names_of(const std::vector<ChannelOffer>& offers) {
  std::string names;
  for (const ChannelOffer& offer : offers) names += (names.empty() ? "" : ", ") + std::string(to_string(offer.kind));
  return names.empty() ? "none" : names;
}

}  // namespace

Result<ChannelSelector::Choice> ChannelSelector::choose(const std::vector<ChannelOffer>& offers, bool same_host,
                                                        Time now) const {
  std::vector<ChannelOffer> usable;
  std::copy_if(offers.begin(), offers.end(), std::back_inserter(usable),
               [&](const ChannelOffer& offer) { return may_use(offer.kind, same_host); });
  if (usable.empty()) {
    if (options_.only) {
      return fail(Code::unsupported, format("channel {} was asked for, and cannot be used: {} offered",
                                            to_string(*options_.only), names_of(offers)));
    }
    return fail(Code::unsupported, format("no channel can be used: {} offered", names_of(offers)));
  }
  std::stable_sort(usable.begin(), usable.end(), [](const ChannelOffer& a, const ChannelOffer& b) {
    return preference(a.kind) < preference(b.kind);
  });
  const auto free_at = [&](const ChannelOffer& offer) { return std::max(of(offer.kind).avoid_until, now); };
  auto best = std::min_element(usable.begin(), usable.end(), [&](const ChannelOffer& a, const ChannelOffer& b) {
    return free_at(a) < free_at(b);  // The first of equals: the preference decides.
  });
  std::string why = format("{}: {}", to_string(best->kind), reason(best->kind, same_host));
  for (auto other = best; best->kind != ChannelKind::shm && other != usable.end(); ++other) {
    const double mine = bandwidth(best->kind, now);
    const double others = bandwidth(other->kind, now);
    if (mine == 0 || free_at(*other) > now || others <= kClearlyFaster * mine) continue;
    why = format("{}: measured {:.0f} MiB/s, {} {:.0f} MiB/s", to_string(other->kind), mebibytes(others),
                 to_string(best->kind), mebibytes(mine));
    best = other;
  }
  for (const ChannelOffer& offer : usable) {
    if (free_at(offer) > now && preference(offer.kind) < preference(best->kind)) {
      why += format("; {} avoided for now, it failed: {}", to_string(offer.kind), of(offer.kind).why);
    }
  }
  const Time not_before = std::min(free_at(*best), std::max(now, of(best->kind).failed_at + options_.pause_alone_max));
  return Choice{.offer = *best, .why = std::move(why), .not_before = not_before};
}

bool ChannelSelector::may_use(ChannelKind kind, bool same_host) const {
  if ((options_.usable & bit(kind)) == 0 || (options_.only && kind != *options_.only)) return false;
  const ChannelTraits can = traits_of(kind);
  return same_host || (can.reaches_other_hosts && (options_.trusted_fabric || !can.needs_trusted_fabric));
}

std::string ChannelSelector::reason(ChannelKind kind, bool same_host) const {
  if (options_.only) return "asked for";
  const ChannelTraits can = traits_of(kind);
  if (!can.reaches_other_hosts) return "on the same host, nothing is copied";
  if (!can.fetches) return "nothing but a folder connects us";
  if (same_host) return "on the same host";
  return can.needs_trusted_fabric ? "the fabric is trusted" : "on another host";
}

void ChannelSelector::failed(ChannelKind kind, std::string why, Time now) {
  Record& record = of(kind);
  const int doublings = std::min(record.failures++, kDoublingsMax);
  record.why = std::move(why);
  record.failed_at = now;
  record.avoid_until = now + std::min<Duration>(options_.pause_min * (1 << doublings), options_.pause_max);
}

void ChannelSelector::worked(ChannelKind kind) {
  of(kind).failures = 0;
  of(kind).avoid_until = Time{};
}

void ChannelSelector::forget_failures() {
  for (Record& record : records_) {
    record.failures = 0;
    record.avoid_until = Time{};
  }
}

void ChannelSelector::measured(ChannelKind kind, std::uint64_t bytes, Duration took, Time now) {
  if (bytes < kMeasuredBytesMin || took <= Duration(0)) return;
  Record& record = of(kind);
  const double rate = static_cast<double>(bytes) / std::chrono::duration<double>(took).count();
  const double before = bandwidth(kind, now);
  record.bytes_per_second = before == 0 ? rate : kNewestWeight * rate + (1 - kNewestWeight) * before;
  record.measured_at = now;
}

double ChannelSelector::bandwidth(ChannelKind kind, Time now) const {
  const Record& record = of(kind);
  return now - record.measured_at > options_.measured_for ? 0 : record.bytes_per_second;
}

}  // namespace freshet::protocol
