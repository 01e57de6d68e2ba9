// SPDX-License-Identifier: Apache-2.0
/// Pinning versions, and telling who holds them.

#include <algorithm>

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

}  // namespace

Status LocalRepository::Impl::add_pin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_label("a pin's holder", by, kPinHolderBytesMax));
  FRESHET_ASSIGN(const Catalog::Found found, find(name));
  FRESHET_ASSIGN(const Backend::Batch batch, pins.add(found.name, by, terms));
  return apply(batch);
}

Status LocalRepository::pin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_label("a pin's holder", by, kPinHolderBytesMax));
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  return impl_->add_pin(name, by, terms);
}

Status LocalRepository::unpin(const VersionName& name, const std::string& by, const PinTerms& terms) {
  FRESHET_TRY(check_holder(by));
  const WritersTurn turn(*impl_);
  FRESHET_TRY(impl_->ready_to_write());
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  FRESHET_ASSIGN(const Backend::Batch batch, impl_->pins.take(found.name, by, terms));
  FRESHET_TRY(impl_->apply(batch));
  impl_->pins.tell_taken();
  return {};
}

Status LocalRepository::renew_pins(const PinLease& lease) { return impl_->pins.renew(lease); }

Result<std::vector<std::string>> LocalRepository::pins(const VersionName& name) const {
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  FRESHET_ASSIGN(const std::vector<PinBook::Holder> holders, impl_->pins.holders_of(found.name));
  std::vector<std::string> names;
  for (const PinBook::Holder& holder : holders) names.push_back(holder.by);
  return names;
}

Result<std::vector<PinnedVersion>> LocalRepository::all_pins() const {
  std::vector<PinnedVersion> all;
  FRESHET_TRY(impl_->backend->scan(kPinPrefix, [&](std::string_view key, std::string_view value) {
    auto named = parse_pin_key(key);
    if (!named) return true;  // verify() tells of it.
    const auto holder = impl_->pins.holder_of(std::move(named->second), value);
    if (!holder) return true;
    PinnedVersion pinned{.version = std::move(named->first), .by = holder->by, .count = holder->count, .left = {}};
    if (holder->until) pinned.left = std::max(Duration::zero(), *holder->until - impl_->clock.now());
    all.push_back(std::move(pinned));
    return true;
  }));
  return all;
}

}  // namespace freshet
