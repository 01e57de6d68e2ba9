// SPDX-License-Identifier: Apache-2.0
/// Aliases of a model whose versions are spread over providers. What an alias means is a record of the model's
/// registrar, which changes by compare-and-swap. The meant version's home has the alias as well, so that it does not
/// retire it: there it is set first and taken away last. Who dies between leaves a version that its home keeps for an
/// alias that means another one; whoever would retire it finds that out, and lets go of it. So that this cannot come
/// between the two steps of a move, the home is asked again after the second.

#include <algorithm>
#include <array>

#include "core/base/format.h"
#include "repo/cluster/impl.h"
#include "repo/registrar/registrar_records.h"

namespace freshet {
namespace {

constexpr int kAliasTriesMax = 64;
/// Each one learns of the newest placement.
constexpr int kAliasPlacementTriesMax = 8;

VersionNumber number_of(const std::vector<Alias>& aliases, const std::string& name) {
  const auto found = std::ranges::find(aliases, name, &Alias::name);
  return found == aliases.end() ? 0 : found->number;
}

}  // namespace

// A registrar of before keeps its record as it was; so whoever answers has to be of the same placement afterwards.
Result<ClusterRepository::Impl::AliasesRecord> ClusterRepository::Impl::registrar_aliases(
    const std::string& model) const {
  std::shared_ptr<const ClusterView> now = view();
  Error error(Code::unavailable, "");
  for (int tries = 0; tries < kAliasPlacementTriesMax; ++tries, now = refresh()) {
    const MemberPointer& registrar = now->members[now->placement.registrar(model)];
    const auto ask = [&](const std::string& key) {
      return registrar->ask([&](ProviderRepository& at) { return at.shared_record(key); });
    };
    const Result<SharedRecord> record = ask(kAliasesPrefix + model);
    const Result<SharedRecord> placed = record ? ask(kPlacementKey) : record;
    if (placed && placed->value == now->placement.encode()) return AliasesRecord{now, registrar, *record};
    error = placed ? Error(Code::unavailable, format("a provider is joining, and the aliases of {} cannot be changed "
                                                     "until it has joined; try again then",
                                                     model))
                   : placed.error();
    if (!placed && (!is_away(error) || !is_outdated(*now))) break;
  }
  return fail(std::move(error));
}

Result<bool> ClusterRepository::Impl::release_stale_aliases(const MemberPointer& home, const VersionName& name) const {
  auto held = home->ask([&](ProviderRepository& at) { return at.aliases(name.model); });
  if (!held) return false;
  std::erase_if(*held, [&](const Alias& alias) { return alias.number != name.number; });
  if (held->empty()) return false;
  const auto at_registrar = registrar_aliases(name.model);
  if (!at_registrar) {
    return fail(Error(at_registrar.error()).with_context(format("whether an alias means {} still", to_string(name))));
  }
  FRESHET_ASSIGN(const std::vector<Alias> meant, parse_aliases(at_registrar->record));
  bool any = false;
  for (const Alias& alias : *held) {
    if (number_of(meant, alias.name) == name.number) continue;
    any |= home->ask([&](ProviderRepository& at) { return at.keep_for_alias(name.model, alias.name, alias.number, 0); })
               .has_value();
  }
  return any;
}

Result<std::vector<Alias>> ClusterRepository::aliases(const std::string& model) const {
  FRESHET_TRY(check_model_name(model));
  FRESHET_ASSIGN(const Impl::AliasesRecord found, impl_->registrar_aliases(model));
  return parse_aliases(found.record);
}

Status ClusterRepository::set_alias(const std::string& model, const std::string& alias,
                                    std::optional<VersionNumber> expected, VersionNumber desired) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_TRY(check_alias(alias));
  std::optional<Impl::Located> meant;
  if (desired != 0) {
    FRESHET_ASSIGN(meant, impl_->locate(VersionName{.model = model, .number = desired}));
    FRESHET_TRY(meant->home->ask(
        [&](ProviderRepository& home) { return home.keep_for_alias(model, alias, std::nullopt, desired); }));
  }
  VersionNumber before = 0;
  bool is_decided = true;
  Status moved = fail(Code::unavailable, format("{}@{} is moved by too many at once", model, alias));
  for (int tries = 0; tries < kAliasTriesMax; ++tries) {
    FRESHET_ASSIGN(const Impl::AliasesRecord found, impl_->registrar_aliases(model));
    FRESHET_ASSIGN(std::vector<Alias> aliases, parse_aliases(found.record));
    before = number_of(aliases, alias);
    if (expected && *expected != before) {
      moved = fail(Code::failed_precondition, format("{}@{} means {} now, not {}", model, alias,
                                                     before == 0 ? "no version" : format("version {}", before),
                                                     *expected == 0 ? "no version" : format("version {}", *expected)));
      break;
    }
    std::erase_if(aliases, [&](const Alias& one) { return one.name == alias; });
    if (desired != 0) aliases.push_back({.name = alias, .number = desired});
    std::ranges::sort(aliases, {}, &Alias::name);
    const SharedRecord next = aliases_record(model, aliases);
    const SharedRecord placement{.key = kPlacementKey, .value = found.now->placement.encode()};
    const std::array unchanged{placement, found.record};
    Status changed = found.registrar->ask(
        [&](ProviderRepository& at) { return at.change_shared_records(unchanged, std::span(&next, 1)); });
    if (!changed && changed.error().code() == Code::failed_precondition) continue;
    moved = std::move(changed);
    is_decided = moved || !is_away(moved.error());
    break;
  }
  if (moved && desired != 0) {
    Status held = meant->home->ask(
        [&](ProviderRepository& home) { return home.keep_for_alias(model, alias, std::nullopt, desired); });
    if (!held && held.error().code() == Code::not_found) {
      (void)set_alias(model, alias, desired, 0);
      return held;
    }
  }
  // What its home kept for the alias's sake is let go: the version that it meant, or the one that it was not given to.
  // Not where it may have been given it without an answer: then its retirement finds out.
  const VersionNumber let_go = moved ? before : desired;
  if (is_decided && let_go != 0 && let_go != (moved ? desired : before)) {
    const auto at = impl_->locate(VersionName{.model = model, .number = let_go});
    if (at) {
      (void)at->home->ask([&](ProviderRepository& home) {
        const Status taken = home.keep_for_alias(model, alias, let_go, 0);
        return taken || is_away(taken.error()) ? taken : Status();
      });
    }
  }
  return moved;
}

}  // namespace freshet
