// SPDX-License-Identifier: Apache-2.0
/// What a version inherits, and from whom: where its writers' segments rest, and what is asked of the caller since
/// nobody who has it answers.

#include <algorithm>

#include "core/base/format.h"
#include "repo/cluster/impl.h"

namespace freshet {
namespace {

using Impl = ClusterRepository::Impl;

/// Finds a place for each writer of one manifest.
class Places {
 public:
  Places(const Impl& impl, const ClusterView& now, const Manifest& manifest, std::size_t home,
         const Impl::NotAsked& not_asked)
      : impl_(impl), now_(now), manifest_(manifest), home_(home), not_asked_(not_asked) {}

  struct Place {
    std::size_t at = 0;
    std::optional<Error> away;  ///< The caller is asked, since whoever has it does not answer.
  };
  Result<Place> of(const VersionId& writer) {
    if (not_asked_.nowhere.contains(writer)) return Place{.at = home_, .away = {}};
    std::optional<Error> away;
    if (!not_asked_.not_there.contains(writer)) {
      FRESHET_ASSIGN(const std::optional<Place> place, where_it_is_thought_to_be(writer, away));
      if (place) return *place;
    }
    if (const auto at = where_the_ancestor_has_it(writer, away)) return Place{.at = *at, .away = {}};
    return Place{.at = home_, .away = std::move(away)};
  }

 private:
  // What is remembered of a writer may be another's copy of some of its tensors, or where it was before it was retired.
  Result<std::optional<Place>> where_it_is_thought_to_be(const VersionId& writer, std::optional<Error>& away) const {
    MemberPointer member = impl_.writer_at(writer);
    if (member == nullptr) {
      const Result<std::optional<Impl::Located>> located = impl_.locate(writer);
      if (!located && !is_away(located.error())) return fail(located.error());
      if (!located) away = located.error();
      if (located && *located) member = (*located)->home;
    }
    if (member != nullptr) {
      if (const auto at = usable(member, away)) return std::optional(Place{.at = *at, .away = {}});
    } else if (!away) {
      return std::optional(
          Place{.at = home_, .away = {}});  // It was never stored: the version keeps a copy of its own.
    }
    return std::optional<Place>();
  }

  /// Nothing for one that is not to be asked; `away` then says why, if it is away.
  std::optional<std::size_t> usable(const MemberPointer& member, std::optional<Error>& away) const {
    const std::size_t at = now_.index_of(member);
    if (at == now_.members.size()) return std::nullopt;
    const auto skipped = not_asked_.away.find(now_.placement.providers()[at].id);
    if (skipped == not_asked_.away.end()) return at;
    away = skipped->second;
    return std::nullopt;
  }

  // It may have been put while the writer's home was away, too, and then has a copy of its own.
  std::optional<std::size_t> where_the_ancestor_has_it(const VersionId& writer, std::optional<Error>& away) {
    if (!manifest_.ancestor) return std::nullopt;
    if (!ancestor_) ancestor_ = fetch_ancestor();
    if (!*ancestor_) return std::nullopt;
    const Impl::Fetched& ancestor = **ancestor_;
    const OwnerMap& owners = ancestor.record.manifest.owners;
    for (std::uint32_t tensor = 0; ancestor.record.has_weights && tensor < owners.size(); ++tensor) {
      if (owners[tensor].writer != writer) continue;
      const Result<MemberPointer> place = impl_.place_of(ancestor.record, ancestor.home, tensor);
      return place ? usable(*place, away) : std::nullopt;
    }
    return std::nullopt;
  }

  Result<Impl::Fetched> fetch_ancestor() const {
    FRESHET_ASSIGN(const std::optional<Impl::Located> located, impl_.locate(*manifest_.ancestor));
    std::optional<Error> away;
    if (!located || !usable(located->home, away)) return fail(Code::not_found, "no provider that answers has it");
    return impl_.fetch(located->name);
  }

  const Impl& impl_;
  const ClusterView& now_;
  const Manifest& manifest_;
  const std::size_t home_;
  const Impl::NotAsked& not_asked_;
  std::optional<Result<Impl::Fetched>> ancestor_;
};

}  // namespace

// Where the ancestor is and what it inherits from whom: the same holds for what the child has of it. Best effort, but
// for an ancestor that was retired.
Status ClusterRepository::Impl::learn_ancestor(const Manifest& manifest, bool may_be_retired) const {
  if (!manifest.ancestor) return {};
  const Result<std::optional<Located>> at = locate(*manifest.ancestor);
  if (!at || !*at) return {};
  const Located& ancestor = **at;
  const bool known = std::ranges::all_of(manifest.owners.writers(), [&](const VersionId& writer) {
    return writer == manifest.id || writer_at(writer) != nullptr;
  });
  Status there;
  if (known) {
    const auto pins = ancestor.home->ask([&](ProviderRepository& home) { return home.pins(ancestor.name); });
    if (!pins) there = fail(pins.error());
  } else {
    const auto record = ancestor.home->ask([&](ProviderRepository& home) { return home.get(ancestor.name); });
    if (record) learn(*record, ancestor.home);
    if (!record) there = fail(record.error());
  }
  if (there || there.error().code() != Code::not_found || may_be_retired) return {};
  return fail(Code::failed_precondition, format("its ancestor {} was retired", to_string(ancestor.name)));
}

Result<Impl::Inheritance> ClusterRepository::Impl::inheritance(const ClusterView& now, const Manifest& manifest,
                                                               std::size_t home, const NotAsked& not_asked) const {
  Inheritance result;
  result.placed.placement = now.placement.number();
  result.placed.attempt = new_attempt();
  Places finder(*this, now, manifest, home, not_asked);
  std::map<VersionId, Places::Place> places;
  for (const VersionId& writer : manifest.owners.writers()) {
    if (writer == manifest.id) continue;
    FRESHET_ASSIGN(Places::Place place, finder.of(writer));
    places.emplace(writer, std::move(place));
  }
  for (std::uint32_t tensor = 0; tensor < manifest.owners.size(); ++tensor) {
    const auto place = places.find(manifest.owners[tensor].writer);
    if (place == places.end()) continue;
    const auto& [at, away] = place->second;
    if (away) result.asked_of_caller.emplace(tensor, *away);
    if (at == home) continue;
    result.placed.elsewhere.push_back(tensor);
    result.segments[at].push_back(manifest.owners[tensor]);
  }
  for (auto& [at, segments] : result.segments) {
    std::ranges::sort(segments);
    segments.erase(std::unique(segments.begin(), segments.end()), segments.end());
  }
  for (const auto& [writer, place] : places) {
    if (place.at == home || place.at == now.placement.home(writer)) continue;
    result.placed.moved.push_back({.writer = writer, .provider = now.placement.providers()[place.at].id});
  }
  return result;
}

std::uint64_t ClusterRepository::Impl::new_attempt() {
  std::uint64_t number = 0;
  while (number == 0) number = random_u64(system_env());
  return number;
}

}  // namespace freshet
