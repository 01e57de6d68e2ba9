#include "repo/cluster/membership.h"

#include <algorithm>
#include <map>
#include <string>

#include "core/format.h"
#include "repo/cluster/hand_over.h"
#include "repo/registrar_records.h"

namespace freshet::cluster {
namespace {

constexpr int kJoinTriesMax = 16;  ///< Each one is lost to another provider that joins.

bool has_all_of(const Placement& placement, const Placement& other) {
  return std::ranges::all_of(other.providers(), [&](const Provider& provider) {
    return placement.index_of(provider.id) != placement.providers().size();
  });
}

// Takes the provider from whatever older placement it knows to `placement`.
Status bring_up(Repository& provider, const Placement& placement) {
  FRESHET_ASSIGN(const SharedRecord record, provider.shared_record(kPlacementKey));
  if (record.value) {
    FRESHET_ASSIGN(const Placement known, Placement::decode(*record.value));
    if (known == placement) return {};
    if (known.number() >= placement.number() || !has_all_of(placement, known)) {
      return fail(Code::failed_precondition, format("it is of another placement, number {}", known.number()));
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

Status bring_all_up(const Placement& placement, const Connect& connect) {
  for (const Provider& provider : in_order_of_change(placement)) {
    if (provider.since == placement.number()) FRESHET_TRY(hand_over(placement, provider, connect));
    FRESHET_TRY(Member(provider, connect).ask([&](Repository& at) { return bring_up(at, placement); }));
  }
  return {};
}

Status check_names_differ(const Placement& placement, const Connect& connect) {
  std::map<std::string, std::string> whose;
  for (const Provider& provider : placement.providers()) {
    const Member member(provider, connect);
    FRESHET_ASSIGN(const std::vector<std::string> models, member.ask([](Repository& at) { return at.models(); }));
    for (const std::string& model : models) {
      const auto [other, first] = whose.try_emplace(model, provider.id);
      if (first) continue;
      return fail(Code::already_exists,
                  format("providers {} and {} both have a model {}", other->second, provider.id, model));
    }
  }
  return {};
}

}  // namespace

Result<Placement> placement_at(Repository& provider) {
  FRESHET_ASSIGN(const SharedRecord record, provider.shared_record(kPlacementKey));
  if (!record.value) return fail(Code::not_found, "it is of no placement yet");
  return Placement::decode(*record.value);
}

Result<Placement> form(std::vector<Provider> providers, const Connect& connect) {
  FRESHET_ASSIGN(const Placement placement, Placement::first(std::move(providers)));
  for (const Provider& provider : placement.providers()) {
    const Result<Placement> known =
        Member(provider, connect).ask([](Repository& at) -> Result<Placement> { return placement_at(at); });
    if (known) {
      if (!has_all_of(*known, placement)) {
        return fail(Code::failed_precondition, format("provider {} belongs to another repository", provider.id));
      }
      FRESHET_ASSIGN(const Placement newest, newest_placement(*known, connect));
      // Whoever formed it may have died before he was done.
      if (newest.number() == 1) FRESHET_TRY(hand_out(newest, connect));
      return newest;
    }
    if (known.error().code() != Code::not_found) return fail(known.error());
  }
  FRESHET_TRY(check_names_differ(placement, connect));
  FRESHET_TRY(bring_all_up(placement, connect));
  FRESHET_TRY(hand_out(placement, connect));
  return placement;
}

Result<Placement> newest_placement(const Placement& known, const Connect& connect) {
  Placement newest = known;
  std::map<std::string, Result<Placement>> known_at;
  const auto ask = [&](const Provider& provider) {
    Result<Placement> there =
        Member(provider, connect).ask([](Repository& at) -> Result<Placement> { return placement_at(at); });
    if (there && there->number() > newest.number() && has_all_of(*there, known)) newest = *there;
    known_at.emplace(provider.id, std::move(there));
  };
  for (const Provider& provider : known.providers()) ask(provider);
  const std::vector<Provider> all(newest.providers().begin(), newest.providers().end());
  for (const Provider& provider : all) {
    if (!known_at.contains(provider.id)) ask(provider);
  }
  // A change that was not finished is finished here, as far as everybody answers; if not, by whoever comes next.
  const bool lags = std::ranges::any_of(known_at, [&](const auto& one) {
    const Result<Placement>& there = one.second;
    return there ? there->number() < newest.number() : there.error().code() == Code::not_found;
  });
  if (lags) (void)bring_all_up(newest, connect);
  return newest;
}

// Before anybody hears of it: what would keep it out is found then, and the others stay as they are.
Status check_can_join(const Placement& next, const Provider& provider, const Connect& connect) {
  const Member member(provider, connect);
  const Result<Placement> known = member.ask([](Repository& at) -> Result<Placement> { return placement_at(at); });
  if (!known && known.error().code() != Code::not_found) return fail(known.error());
  if (known && (known->number() >= next.number() || !has_all_of(next, *known))) {
    return fail(Code::failed_precondition, format("provider {} belongs to another repository", provider.id));
  }
  FRESHET_ASSIGN(const std::vector<std::string> models, member.ask([](Repository& at) { return at.models(); }));
  if (!models.empty()) {
    return fail(Code::failed_precondition,
                format("provider {} has models of its own ({}, …); a provider joins empty", provider.id, models[0]));
  }
  // Their names may be the others', and no version can take the place of one that was retired.
  FRESHET_ASSIGN(const RepositoryStat stat, member.ask([](Repository& at) { return at.stat(); }));
  if (stat.retired_versions == 0) return {};
  return fail(
      Code::failed_precondition,
      format("provider {} had models of its own, of which it remembers {} retired version{}; a provider joins with "
             "a new folder",
             provider.id, stat.retired_versions, stat.retired_versions == 1 ? "" : "s"));
}

Result<Placement> join(const Placement& known, const Provider& provider, const Connect& connect, bool* told) {
  const auto join_next_to = [&](const Placement& newest, bool& tells) -> Result<Placement> {
    FRESHET_TRY(bring_all_up(newest, connect));
    Result<Placement> next = newest.with(provider);
    if (!next) return next.error().code() == Code::already_exists ? Result<Placement>(newest) : next;
    if (newest.index_of(provider.id) == newest.providers().size()) {
      FRESHET_TRY(check_can_join(*next, provider, connect));
      FRESHET_TRY(hand_over_early(*next, next->providers()[next->index_of(provider.id)], connect));
    }
    tells = true;
    FRESHET_TRY(bring_all_up(*next, connect));
    return next;
  };
  for (int tries = 0; tries < kJoinTriesMax; ++tries) {
    FRESHET_ASSIGN(const Placement newest, newest_placement(known, connect));
    bool tells = false;
    Result<Placement> joined = join_next_to(newest, tells);
    if (joined) return joined;
    // All are told in one order, so of two that join at the same time one is heard first everywhere, and nobody has
    // heard of the other; unless that one came after the first was heard by some, and finished it.
    const Result<Placement> now = newest_placement(newest, connect);
    const bool others_came_in =
        now && joined.error().code() == Code::failed_precondition && now->number() > newest.number();
    const bool is_in = now && now->index_of(provider.id) != now->providers().size();
    if (told != nullptr && (is_in || (tells && !others_came_in))) *told = true;
    if (!others_came_in) return joined;
  }
  return fail(Code::unavailable, "others join all the time: try again");
}

}  // namespace freshet::cluster
