// SPDX-License-Identifier: Apache-2.0
#include "repo/cluster/placement/membership.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "core/base/format.h"
#include "repo/cluster/placement/hand_over.h"
#include "repo/registrar/registrar_records.h"

namespace freshet::cluster {
namespace {

bool has_all_of(const Placement& placement, const Placement& other) {
  return std::ranges::all_of(other.providers(), [&](const Provider& provider) {
    return placement.index_of(provider.id) != placement.providers().size();
  });
}

// Takes the provider from whatever older placement it knows to `placement`.
Status bring_up(ProviderRepository& provider, const Placement& placement) {
  FRESHET_ASSIGN(const SharedRecord record, provider.shared_record(kPlacementKey));
  if (record.value) {
    FRESHET_ASSIGN(const Placement known, Placement::decode(*record.value));
    if (known == placement) return {};
    if (known.number() >= placement.number() || !has_all_of(placement, known)) {
      return fail(Code::failed_precondition, format("it belongs to another placement, number {}", known.number()));
    }
  }
  const SharedRecord next{.key = kPlacementKey, .value = placement.encode()};
  return provider.change_shared_records(std::span(&record, 1), std::span(&next, 1));
}

// Those that came with the newest number last: they must not begin before all others know.
std::vector<Provider> in_order_of_change(const Placement& placement) {
  std::vector<Provider> order(placement.providers().begin(), placement.providers().end());
  std::stable_partition(order.begin(), order.end(), [&](const Provider& p) { return p.since < placement.number(); });
  return order;
}

Result<Placement> placement_of(const Provider& provider, const Connect& connect) {
  return Member(provider, connect).ask([](ProviderRepository& at) -> Result<Placement> { return placement_at(at); });
}

// A provider that came with the placement, and was not told of it yet. It finishes its join itself.
std::optional<Provider> still_joining(const Placement& placement, const std::string& self, const Connect& connect) {
  for (const Provider& provider : placement.providers()) {
    if (provider.since != placement.number() || provider.since == 1 || provider.id == self) continue;
    const Result<Placement> known = placement_of(provider, connect);
    if (!known || *known != placement) return provider;
  }
  return std::nullopt;
}

// REQUIRES: nobody but `self` is still joining.
Status bring_all_up(const Placement& placement, const std::string& self, const Connect& connect) {
  for (const Provider& provider : in_order_of_change(placement)) {
    if (provider.since == placement.number() && provider.id == self) {
      FRESHET_TRY(hand_over(placement, provider, connect));
    }
    FRESHET_TRY(Member(provider, connect).ask([&](ProviderRepository& at) { return bring_up(at, placement); }));
  }
  return {};
}

Status check_empty(const Placement& placement, const Connect& connect) {
  for (const Provider& provider : placement.providers()) {
    const Member member(provider, connect);
    FRESHET_ASSIGN(const std::vector<std::string> models,
                   member.ask([](ProviderRepository& at) { return at.models(); }));
    FRESHET_ASSIGN(const RepositoryStat stat, member.ask([](ProviderRepository& at) { return at.stat(); }));
    if (models.empty() && stat.retired_versions == 0) continue;
    return fail(Code::failed_precondition,
                format("provider {} has, or had, its own models: let the other providers join this one", provider.id));
  }
  return {};
}

}  // namespace

Result<Placement> placement_at(const ProviderRepository& provider) {
  FRESHET_ASSIGN(const SharedRecord record, provider.shared_record(kPlacementKey));
  if (!record.value) return fail(Code::not_found, "it belongs to no placement yet");
  return Placement::decode(*record.value);
}

Result<Placement> form(std::vector<Provider> providers, const Connect& connect) {
  FRESHET_ASSIGN(const Placement placement, Placement::first(std::move(providers)));
  for (const Provider& provider : placement.providers()) {
    const Result<Placement> known = placement_of(provider, connect);
    if (known) {
      if (!has_all_of(*known, placement)) {
        return fail(Code::failed_precondition, format("provider {} belongs to another repository", provider.id));
      }
      return newest_placement(*known, connect);
    }
    if (known.error().code() != Code::not_found) return fail(known.error());
  }
  if (placement.providers().size() > 1) FRESHET_TRY(check_empty(placement, connect));
  FRESHET_TRY(bring_all_up(placement, "", connect));
  return placement;
}

Result<Placement> newest_placement(const Placement& known, const Connect& connect) {
  Placement newest = known;
  std::set<std::string> asked;
  const auto ask = [&](const Provider& provider) {
    if (!asked.insert(provider.id).second) return;
    Result<Placement> there = placement_of(provider, connect);
    if (there && there->number() > newest.number() && has_all_of(*there, known)) newest = *std::move(there);
  };
  for (const Provider& provider : known.providers()) ask(provider);
  const std::vector<Provider> all(newest.providers().begin(), newest.providers().end());
  for (const Provider& provider : all) ask(provider);
  return newest;
}

// Before anybody hears of it: what would keep it out is found then, and the others stay as they are.
Status check_can_join(const Placement& next, const Provider& provider, const Connect& connect) {
  const Member member(provider, connect);
  const Result<Placement> known = placement_of(provider, connect);
  if (!known && known.error().code() != Code::not_found) return fail(known.error());
  if (known && (known->number() >= next.number() || !has_all_of(next, *known))) {
    return fail(Code::failed_precondition, format("provider {} belongs to another repository", provider.id));
  }
  FRESHET_ASSIGN(const std::vector<std::string> models, member.ask([](ProviderRepository& at) { return at.models(); }));
  if (!models.empty()) {
    return fail(
        Code::failed_precondition,
        format("provider {} has its own models ({}, …); a provider joins with a new folder", provider.id, models[0]));
  }
  // Their names may be the others', and no version can take the place of one that was retired.
  FRESHET_ASSIGN(const RepositoryStat stat, member.ask([](ProviderRepository& at) { return at.stat(); }));
  if (stat.retired_versions == 0) return {};
  return fail(
      Code::failed_precondition,
      format("provider {} had its own models (it keeps {} retired version{}); a provider joins with a new folder",
             provider.id, stat.retired_versions, stat.retired_versions == 1 ? "" : "s"));
}

Result<Placement> join(const Placement& known, const Provider& provider, const Connect& connect, JoinTrace* trace) {
  JoinTrace ignored;
  JoinTrace& met = trace == nullptr ? ignored : *trace;
  met.others_join = false;
  FRESHET_ASSIGN(const Placement newest, newest_placement(known, connect));
  const auto is_in = [&](const Placement& placement) {
    return placement.index_of(provider.id) != placement.providers().size();
  };
  if (const auto other = still_joining(newest, provider.id, connect)) {
    met.others_join = true;
    return fail(Code::unavailable,
                format("provider {} ({}) has not finished its join; if it does not run, start it again", other->id,
                       other->address));
  }
  bool tells = is_in(newest);
  const auto join_next_to_newest = [&]() -> Result<Placement> {
    FRESHET_TRY(bring_all_up(newest, provider.id, connect));
    Result<Placement> next = newest.with(provider);
    if (!next) return next.error().code() == Code::already_exists ? Result<Placement>(newest) : next;
    if (!is_in(newest)) FRESHET_TRY(check_can_join(*next, provider, connect));
    tells = true;
    FRESHET_TRY(bring_all_up(*next, provider.id, connect));
    return next;
  };
  Result<Placement> joined = join_next_to_newest();
  if (joined) return joined;
  // All are told in one order, so of two that join at the same time one is heard first everywhere, and nobody has
  // heard of the other.
  const Result<Placement> now = newest_placement(newest, connect);
  met.others_join = now && now->number() > newest.number() && !is_in(*now);
  if (tells && !met.others_join) met.told = true;
  if (!met.others_join) return joined;
  return fail(Code::unavailable, "another provider joins at this moment; try again");
}

}  // namespace freshet::cluster
