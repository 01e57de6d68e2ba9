#include "repo/cluster/finder.h"

#include <utility>
#include <vector>

#include "core/format.h"
#include "repo/cluster/member.h"

namespace freshet::cluster {
namespace {

constexpr Duration kAskAroundEvery = std::chrono::seconds(1);

}  // namespace

void ProviderFinder::know(const Placement& placement) {
  const MutexLock lock(mutex_);
  for (const Provider& provider : placement.providers()) placed_[provider.id] = provider.address;
}

void ProviderFinder::learn(const AddressBook& book) {
  const MutexLock lock(mutex_);
  book_.merge(book);
}

std::string ProviderFinder::address_of(const Provider& provider) const {
  const MutexLock lock(mutex_);
  std::string now = book_.address_of(provider.id);
  return now.empty() ? provider.address : now;
}

Result<std::shared_ptr<Repository>> ProviderFinder::reach_at(const std::string& id, const std::string& address) {
  FRESHET_ASSIGN(std::shared_ptr<Repository> repository, dial_(address));
  FRESHET_ASSIGN(const SharedRecord self, repository->shared_record(kSelfKey));
  if (self.value != id) {
    return fail(Code::unavailable, format("at {} is another provider, {}", address,
                                          self.value ? *self.value : std::string("which has no id")));
  }
  if (const auto book = addresses_at(*repository)) learn(*book);
  return repository;
}

void ProviderFinder::ask_around(const std::string& id) {
  if (own_ != nullptr) {
    if (const auto book = addresses_at(*own_)) learn(*book);
  }
  std::vector<std::pair<std::string, std::string>> others;
  {
    const MutexLock lock(mutex_);
    for (const auto& [other, placed] : placed_) {
      if (other == id) continue;
      const std::string moved = book_.address_of(other);
      others.emplace_back(other, moved.empty() ? placed : moved);
    }
  }
  at_once(others.size(), [&](std::size_t i) { (void)reach_at(others[i].first, others[i].second); });
}

Result<std::shared_ptr<Repository>> ProviderFinder::reach(const Provider& provider) {
  const std::string first = address_of(provider);
  auto reached = reach_at(provider.id, first);
  if (reached || !is_away(reached.error())) return reached;
  if (provider.address != first) {
    // It may be back where it was placed, and not have told anybody yet.
    if (auto placed = reach_at(provider.id, provider.address)) return placed;
  }
  {
    const MutexLock lock(mutex_);
    placed_.try_emplace(provider.id, provider.address);
    const Time now = system_clock().now();
    const auto [asked, is_new] = asked_.try_emplace(provider.id, now);
    if (!is_new && now - asked->second < kAskAroundEvery) return reached;
    asked->second = now;
  }
  ask_around(provider.id);
  const std::string second = address_of(provider);
  return second == first ? std::move(reached) : reach_at(provider.id, second);
}

}  // namespace freshet::cluster
