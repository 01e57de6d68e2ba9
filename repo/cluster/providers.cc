// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/providers.h"

#include <algorithm>
#include <thread>

#include "core/base/clock.h"
#include "core/base/deadline.h"
#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/placement/membership.h"

namespace freshet {
namespace {

using cluster::kSelfKey;

// A connection that is made anew leads to the same provider as before, or nowhere.
Result<std::unique_ptr<ProviderRepository>> connect_provider(const std::string& address,
                                                             RemoteRepositoryOptions options) {
  options.known_by = kSelfKey;
  return connect_repository(address, std::move(options));
}

// Whoever answers must be the provider that was meant: another one that listens at its address is not taken for it.
Result<std::shared_ptr<ProviderRepository>> reach_provider(const Provider& provider,
                                                           const RemoteRepositoryOptions& options) {
  FRESHET_ASSIGN(std::unique_ptr<ProviderRepository> repository, connect_provider(provider.address, options));
  FRESHET_ASSIGN(const SharedRecord self, repository->shared_record(kSelfKey));
  if (self.value == provider.id) return std::shared_ptr<ProviderRepository>(std::move(repository));
  return fail(Code::unavailable, format("another provider listens at {}: {}", provider.address,
                                        self.value ? *self.value : std::string("a provider without an id")));
}

/// Where several join at the same time, each tries again until the one before it is done.
constexpr Duration kOthersJoinFor = std::chrono::seconds(10);
constexpr Duration kOthersJoinPause = std::chrono::milliseconds(20);

struct Reached {
  std::string address;
  std::unique_ptr<ProviderRepository> repository;
  std::optional<Placement> placement;  ///< Nothing for one that is alone.
};

Result<std::vector<std::string>> list_of(const std::string& addresses) {
  std::vector<std::string> list;
  for (const std::string_view address : split_list(addresses)) {
    if (address.empty()) return fail(Code::invalid_argument, format("an address is missing in {}", addresses));
    list.emplace_back(address);
  }
  return list;
}

// Providers are only ever added, so of two placements of one repository the earlier one is a part of the later one.
bool is_same_repository(const Placement& one, const Placement& other) {
  const Placement& earlier = one.number() < other.number() ? one : other;
  const Placement& later = one.number() < other.number() ? other : one;
  return std::ranges::all_of(earlier.providers(), [&](const Provider& provider) {
    return later.index_of(provider.id) != later.providers().size();
  });
}

Status refuse_alone(const std::string& address) {
  return fail(Code::failed_precondition, format("{} is a separate repository and does not belong to the other "
                                                "addresses: remove it from the list, or give it alone",
                                                address));
}

// Somebody else may listen by now where a provider used to. Providers that are where the placement says are found by
// their ids anyhow.
Status check_others(const Reached& reached, std::span<const std::string> others, const std::string& own,
                    RemoteRepositoryOptions options) {
  std::vector<std::string> unknown;
  for (const std::string& address : others) {
    const bool is_known = std::ranges::find(reached.placement->providers(), address, &Provider::address) !=
                          reached.placement->providers().end();
    if (!is_known && address != own && address != reached.address) unknown.push_back(address);
  }
  options.connect = std::min<Duration>(options.connect, std::chrono::seconds(2));
  std::vector<Status> checked(unknown.size());
  cluster::at_once(unknown.size(), [&](std::size_t i) {
    const auto other = connect_provider(unknown[i], options);
    if (!other) return;
    const Result<Placement> placement = cluster::placement_at(**other);
    if (!placement && placement.error().code() == Code::not_found) {
      checked[i] = refuse_alone(unknown[i]);
    } else if (placement && !is_same_repository(*placement, *reached.placement)) {
      checked[i] = fail(Code::failed_precondition,
                        format("the repository at {} is not the one at {}: remove one of the two addresses", unknown[i],
                               reached.address));
    }
  });
  for (Status& status : checked) FRESHET_TRY(std::move(status));
  return {};
}

// The first of the addresses that answers. `own` is an address of the list that nobody needs to ask.
Result<Reached> reach(const std::string& addresses, const RemoteRepositoryOptions& options,
                      const std::string& own = {}) {
  FRESHET_ASSIGN(const std::vector<std::string> list, list_of(addresses));
  std::optional<Error> last;
  for (std::size_t i = 0; i < list.size(); ++i) {
    RemoteRepositoryOptions wanted = options;
    for (std::size_t other = 0; other < list.size(); ++other) {
      if (other != i) wanted.others.push_back(list[other]);
    }
    auto repository = connect_provider(list[i], std::move(wanted));
    if (!repository) {
      last = repository.error();
      if (last->code() != Code::unavailable && last->code() != Code::timed_out) break;
      continue;
    }
    Reached reached{.address = list[i], .repository = std::move(*repository), .placement = {}};
    // The addresses of an owner and its standbys: the connection itself knows them.
    if (may_move(*reached.repository)) return reached;
    Result<Placement> placement = cluster::placement_at(*reached.repository);
    if (placement) {
      reached.placement = std::move(*placement);
      FRESHET_TRY(check_others(reached, std::span(list).subspan(i + 1), own, options));
    } else if (placement.error().code() != Code::not_found) {
      return fail(std::move(placement).error());
    } else if (list.size() > 1) {
      FRESHET_TRY(refuse_alone(list[i]));
    }
    return reached;
  }
  return fail(*last);
}

}  // namespace

Result<std::unique_ptr<Repository>> open_providers(const std::string& addresses,
                                                   const RemoteRepositoryOptions& options) {
  FRESHET_ASSIGN(Reached reached, reach(addresses, options));
  if (!reached.placement) return std::unique_ptr<Repository>(std::move(reached.repository));
  FRESHET_ASSIGN(std::unique_ptr<ClusterRepository> together,
                 ClusterRepository::open(*reached.placement, [options](const Provider& provider) {
                   return reach_provider(provider, options);
                 }));
  return std::unique_ptr<Repository>(std::move(together));
}

Result<std::string> provider_id(ProviderRepository& own) {
  FRESHET_ASSIGN(const SharedRecord record, own.shared_record(kSelfKey));
  if (record.value) return *record.value;
  const SharedRecord made{.key = kSelfKey, .value = format("{:016x}", random_u64(system_env()))};
  const Status kept = own.change_shared_records(std::span(&record, 1), std::span(&made, 1));
  if (!kept && kept.error().code() != Code::failed_precondition) return fail(kept.error());
  FRESHET_ASSIGN(const SharedRecord now, own.shared_record(kSelfKey));
  if (!now.value) return fail(Code::corrupt, "the provider's id is gone");
  return *now.value;
}

namespace {

Result<Placement> join_once(ProviderRepository& own, const Provider& self, const Reached& reached,
                            const RemoteRepositoryOptions& options, cluster::JoinTrace& trace) {
  const cluster::Connect connect = [&](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
    if (provider.id == self.id) return std::shared_ptr<ProviderRepository>(&own, [](ProviderRepository*) {});
    return reach_provider(provider, options);
  };
  Result<Placement> placement = cluster::placement_at(*reached.repository);
  if (!placement && placement.error().code() == Code::not_found) {
    FRESHET_ASSIGN(const std::string other, provider_id(*reached.repository));
    placement = cluster::form({{.id = other, .address = reached.address}}, connect);
  }
  if (!placement) return placement;
  const std::size_t at = placement->index_of(self.id);
  trace.told = at != placement->providers().size();
  // Where it has joined, nobody else needs to be there.
  if (trace.told && placement->providers()[at].address == self.address && cluster::placement_at(own)) {
    return cluster::newest_placement(*placement, connect);
  }
  return cluster::join(*placement, self, connect, &trace);
}

}  // namespace

Result<Placement> join_providers(ProviderRepository& own, const std::string& address, const std::string& joined,
                                 const RemoteRepositoryOptions& options, bool* known) {
  FRESHET_ASSIGN(const std::string id, provider_id(own));
  FRESHET_ASSIGN(const Reached reached, reach(joined, options, address));
  FRESHET_ASSIGN(const std::string other, provider_id(*reached.repository));
  if (other == id) return fail(Code::invalid_argument, joined + " is this provider itself");
  const Time deadline = deadline_in(kOthersJoinFor);
  for (;;) {
    cluster::JoinTrace trace;
    Result<Placement> placement = join_once(own, {.id = id, .address = address}, reached, options, trace);
    if (known != nullptr) *known = trace.told;
    if (placement || !trace.others_join || system_clock().now() >= deadline) return placement;
    std::this_thread::sleep_for(kOthersJoinPause);
  }
}

}  // namespace freshet
