// SPDX-License-Identifier: Apache-2.0
/// Pins: for each (version, holder) a durable count of those that stay and of those of each lease.

#include <algorithm>
#include <chrono>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

/// Of a pin that is there already, from before names were looked at more closely.
Status check_holder(const std::string& by) {
  if (by.empty() || by.size() > kPinHolderBytesMax) {
    return fail(Code::invalid_argument, format("a pin's holder has 1 to {} characters", kPinHolderBytesMax));
  }
  return {};
}

Result<PinRow> pins_at(const Backend& backend, const std::string& key) {
  const Result<std::string> stored = backend.get(key);
  if (!stored && stored.error().code() == Code::not_found) return PinRow{};
  if (!stored) return fail(stored.error());
  return decode_pin(*stored);
}

}  // namespace

Status LocalRepository::Impl::add_pin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_label("a pin's holder", by, kPinHolderBytesMax));
  FRESHET_ASSIGN(const Catalog::Found found, find(name));
  const std::string key = pin_key(found.name, by);
  FRESHET_ASSIGN(PinRow row, pins_at(*backend, key));
  std::optional<PinLease> lease;
  {
    const MutexLock lock(mutex);
    const Time now = clock.now();
    if (!terms.stays) lease = terms.lease.value_or(leases.own());
    if (lease) FRESHET_TRY(leases.renew(*lease, now));
    row.drop_ended(leases, now);
  }
  FRESHET_TRY(row.add(lease));
  return apply({Backend::Put{key, encode(row)}});
}

Status LocalRepository::pin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_label("a pin's holder", by, kPinHolderBytesMax));
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  return impl_->add_pin(name, by, terms);
}

// One whose lease has ended is there until somebody tidies up, and whoever comes late may take it away.
Status LocalRepository::unpin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_holder(by));
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  const std::string key = pin_key(found.name, by);
  FRESHET_ASSIGN(PinRow row, pins_at(*impl_->backend, key));
  if (row.empty()) return fail(Code::not_found, format("{} is not pinned by {}", to_string(found.name), by));
  {
    const MutexLock lock(impl_->mutex);
    row.take(terms.lease.value_or(impl_->leases.own()));
  }
  Backend::Batch batch;
  if (row.empty()) {
    batch.push_back(Backend::Erase{key});
  } else {
    batch.push_back(Backend::Put{key, encode(row)});
  }
  FRESHET_TRY(impl_->apply(batch));
  // What is left may end with leases, so whoever waits looks again.
  const MutexLock lock(impl_->mutex);
  ++impl_->unpins;
  impl_->unpinned.notify_all();
  return {};
}

Status LocalRepository::renew_pins(const PinLease& lease) {
  const MutexLock lock(impl_->mutex);
  return impl_->leases.renew(lease, impl_->clock.now());
}

// Nothing for pins that have all ended.
std::optional<LocalRepository::Impl::Holder> LocalRepository::Impl::holder_of(std::string by,
                                                                              std::string_view value) const {
  Holder holder{.by = std::move(by)};
  Result<PinRow> row = decode_pin(value);
  // What is damaged may be one that stays.
  if (!row) return holder;
  const MutexLock lock(mutex);
  row->drop_ended(leases, clock.now());
  if (row->empty()) return std::nullopt;
  holder.count = row->stay;
  bool stays = row->stay != 0;
  for (const PinRow::Leased& one : row->leased) {
    const std::optional<Time> end = leases.end_of(one.lease);
    stays = stays || !end;
    if (end) holder.until = std::max(holder.until.value_or(*end), *end);
    holder.count += one.count;
  }
  if (stays) holder.until.reset();
  return holder;
}

Result<std::vector<LocalRepository::Impl::Holder>> LocalRepository::Impl::holders_of(const VersionName& name) const {
  const std::string prefix = pin_prefix(name);
  std::vector<Holder> holders;
  FRESHET_TRY(backend->scan(prefix, [&](std::string_view key, std::string_view value) {
    if (auto holder = holder_of(std::string(key.substr(prefix.size())), value)) holders.push_back(*std::move(holder));
    return true;
  }));
  return holders;
}

std::string LocalRepository::Impl::describe(const Holder& holder) const {
  if (!holder.until) return holder.by;
  const auto left = std::chrono::ceil<std::chrono::seconds>(*holder.until - clock.now());
  return format("{} (for {} s, unless it renews)", holder.by, std::max<std::int64_t>(left.count(), 0));
}

Result<std::vector<std::string>> LocalRepository::pins(const VersionName& name) const {
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  FRESHET_ASSIGN(const std::vector<Impl::Holder> holders, impl_->holders_of(found.name));
  std::vector<std::string> names;
  for (const Impl::Holder& holder : holders) names.push_back(holder.by);
  return names;
}

Result<std::vector<PinnedVersion>> LocalRepository::all_pins() const {
  std::vector<PinnedVersion> all;
  FRESHET_TRY(impl_->backend->scan(kPinPrefix, [&](std::string_view key, std::string_view value) {
    auto named = parse_pin_key(key);
    if (!named) return true;  // verify() tells of it.
    const auto holder = impl_->holder_of(std::move(named->second), value);
    if (!holder) return true;
    PinnedVersion pinned{.version = std::move(named->first), .by = holder->by, .count = holder->count, .left = {}};
    if (holder->until) pinned.left = std::max(Duration::zero(), *holder->until - impl_->clock.now());
    all.push_back(std::move(pinned));
    return true;
  }));
  return all;
}

}  // namespace freshet
