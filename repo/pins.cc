/// Pins: a durable count for each (version, holder).

#include <limits>

#include "core/format.h"
#include "repo/local_repository.h"

namespace freshet {
namespace {

Status check_holder(const std::string& by) {
  if (by.empty() || by.size() > kPinHolderBytesMax) {
    return fail(Code::invalid_argument, format("a pin's holder has 1 to {} characters", kPinHolderBytesMax));
  }
  return {};
}

Result<std::uint64_t> count_at(const Backend& backend, const std::string& key) {
  const Result<std::string> stored = backend.get(key);
  if (!stored && stored.error().code() == Code::not_found) return 0;
  if (!stored) return fail(stored.error());
  return parse_number(*stored);
}

}  // namespace

Status LocalRepository::Impl::add_pin(const VersionName& name, const std::string& by) {
  FRESHET_TRY(check_holder(by));
  FRESHET_ASSIGN(const Catalog::Found found, find(name));
  const std::string key = pin_key(found.name, by);
  FRESHET_ASSIGN(const std::uint64_t count, count_at(*backend, key));
  if (count == std::numeric_limits<std::uint64_t>::max()) return fail(Code::out_of_space, "too many pins");
  return apply({Backend::Put{key, std::to_string(count + 1)}});
}

Status LocalRepository::pin(const VersionName& name, const std::string& by) {
  FRESHET_TRY(check_holder(by));
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  return impl_->add_pin(name, by);
}

Status LocalRepository::unpin(const VersionName& name, const std::string& by) {
  FRESHET_TRY(check_holder(by));
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->ready_to_write());
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  const std::string key = pin_key(found.name, by);
  FRESHET_ASSIGN(const std::uint64_t count, count_at(*impl_->backend, key));
  if (count == 0) return fail(Code::not_found, format("{} is not pinned by {}", to_string(found.name), by));
  if (count > 1) return impl_->apply({Backend::Put{key, std::to_string(count - 1)}});
  FRESHET_TRY(impl_->apply({Backend::Erase{key}}));
  const MutexLock lock(impl_->mutex);
  ++impl_->unpins;
  impl_->unpinned.notify_all();
  return {};
}

Result<std::vector<std::string>> LocalRepository::Impl::pins_of(const VersionName& name) const {
  const std::string prefix = pin_prefix(name);
  std::vector<std::string> holders;
  FRESHET_TRY(backend->scan(prefix, [&](std::string_view key, std::string_view) {
    holders.emplace_back(key.substr(prefix.size()));
    return true;
  }));
  return holders;
}

Result<std::vector<std::string>> LocalRepository::pins(const VersionName& name) const {
  FRESHET_ASSIGN(const Catalog::Found found, impl_->find(name));
  return impl_->pins_of(found.name);
}

}  // namespace freshet
