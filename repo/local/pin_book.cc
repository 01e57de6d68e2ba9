// SPDX-License-Identifier: Apache-2.0
/// Pins: for each (version, holder) a durable count of those that stay and of those of each lease.

#include "repo/local/pin_book.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/text.h"
#include "repo/records/records.h"

namespace freshet {
namespace {

Result<PinRow> pins_at(const Backend& backend, const std::string& key) {
  const Result<std::string> stored = backend.get(key);
  if (!stored && stored.error().code() == Code::not_found) return PinRow{};
  if (!stored) return fail(stored.error());
  return decode_pin(*stored);
}

}  // namespace

void PinBook::begin_leases() {
  const MutexLock lock(mutex_);
  leases_.set_opened(clock_.now());
}

Status PinBook::renew(const PinLease& lease) {
  const MutexLock lock(mutex_);
  return leases_.renew(lease, clock_.now());
}

Result<Backend::Batch> PinBook::add(const VersionName& name, const std::string& by, const PinTerms& terms) {
  const std::string key = pin_key(name, by);
  FRESHET_ASSIGN(PinRow row, pins_at(backend_, key));
  std::optional<PinLease> lease;
  {
    const MutexLock lock(mutex_);
    const Time now = clock_.now();
    if (!terms.stays) lease = terms.lease.value_or(leases_.own());
    if (lease) FRESHET_TRY(leases_.renew(*lease, now));
    row.drop_ended(leases_, now);
  }
  FRESHET_TRY(row.add(lease));
  return Backend::Batch{Backend::Put{key, encode(row)}};
}

// One whose lease has ended is there until somebody tidies up, and whoever comes late may take it away.
Result<Backend::Batch> PinBook::take(const VersionName& name, const std::string& by, const PinTerms& terms) {
  const std::string key = pin_key(name, by);
  FRESHET_ASSIGN(PinRow row, pins_at(backend_, key));
  if (row.empty()) return fail(Code::not_found, format("{} is not pinned by {}", to_string(name), by));
  {
    const MutexLock lock(mutex_);
    row.take(terms.lease.value_or(leases_.own()));
  }
  if (row.empty()) return Backend::Batch{Backend::Erase{key}};
  return Backend::Batch{Backend::Put{key, encode(row)}};
}

void PinBook::tell_taken() {
  // What is left may end with leases, so whoever waits looks again.
  const MutexLock lock(mutex_);
  ++taken_;
  one_taken_.notify_all();
}

std::uint64_t PinBook::taken() const {
  const MutexLock lock(mutex_);
  return taken_;
}

Status PinBook::wait_for_take(std::uint64_t known, Time until, const VersionName& name) {
  for (;;) {
    const Time look = Interruption::next_look(until);
    {
      const MutexLock lock(mutex_);
      while (taken_ == known) {
        if (!one_taken_.wait_until(mutex_, look)) break;
      }
      if (taken_ != known) return {};
    }
    if (Interruption::is_wanted()) {
      return fail(Code::cancelled, format("the wait for the pins of {} was stopped by its caller", to_string(name)));
    }
    if (look == until) return {};
  }
}

std::optional<PinBook::Holder> PinBook::holder_of(std::string by, std::string_view value) const {
  Holder holder{.by = std::move(by)};
  Result<PinRow> row = decode_pin(value);
  // What is damaged may be one that stays.
  if (!row) return holder;
  const MutexLock lock(mutex_);
  row->drop_ended(leases_, clock_.now());
  if (row->empty()) return std::nullopt;
  holder.count = row->stay;
  bool stays = row->stay != 0;
  for (const PinRow::Leased& one : row->leased) {
    const std::optional<Time> end = leases_.end_of(one.lease);
    stays = stays || !end;
    if (end) holder.until = std::max(holder.until.value_or(*end), *end);
    holder.count += one.count;
  }
  if (stays) holder.until.reset();
  return holder;
}

Result<std::vector<PinBook::Holder>> PinBook::holders_of(const VersionName& name) const {
  const std::string prefix = pin_prefix(name);
  std::vector<Holder> holders;
  FRESHET_TRY(backend_.scan(prefix, [&](std::string_view key, std::string_view value) {
    if (auto holder = holder_of(std::string(key.substr(prefix.size())), value)) holders.push_back(*std::move(holder));
    return true;
  }));
  return holders;
}

std::string PinBook::describe(const Holder& holder) const {
  if (!holder.until) return holder.by;
  const auto left = std::chrono::ceil<std::chrono::seconds>(*holder.until - clock_.now());
  return format("{} (for {} s, unless it renews)", holder.by, std::max<std::int64_t>(left.count(), 0));
}

}  // namespace freshet
