/// Aliases of a model whose versions are spread over providers. What an alias means is a record of the model's
/// registrar, which changes by compare-and-swap. The meant version's home has the alias as well, so that it does not
/// retire it: there it is set first and taken away last. Who dies between leaves a version that its home keeps for an
/// alias that means another one; whoever would retire it finds that out, and lets go of it. So that this cannot come
/// between the two steps of a move, the home is asked again after the second.

#include <algorithm>
#include <array>
#include <charconv>

#include "core/format.h"
#include "repo/cluster/cluster_impl.h"
#include "repo/cluster/membership.h"

namespace freshet {
namespace {

constexpr int kTriesMax = 64;

std::string aliases_key(const std::string& model) { return "aliases/" + model; }

// One "name number" a line, by name.
Result<std::vector<Alias>> parse(const std::optional<std::string>& text) {
  std::vector<Alias> aliases;
  std::string_view rest = text ? std::string_view(*text) : std::string_view();
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::size_t space = line.find(' ');
    Alias alias{.name = std::string(line.substr(0, space))};
    const char* const end = line.data() + line.size();
    if (space == std::string_view::npos || !check_alias(alias.name) ||
        std::from_chars(line.data() + space + 1, end, alias.number).ptr != end) {
      return fail(Code::corrupt, "the record of its aliases is damaged");
    }
    aliases.push_back(std::move(alias));
  }
  return aliases;
}

std::optional<std::string> text_of(const std::vector<Alias>& aliases) {
  if (aliases.empty()) return std::nullopt;
  std::string text;
  for (const Alias& alias : aliases) text += format("{} {}\n", alias.name, alias.number);
  return text;
}

VersionNumber number_of(const std::vector<Alias>& aliases, const std::string& name) {
  const auto found = std::ranges::find(aliases, name, &Alias::name);
  return found == aliases.end() ? 0 : found->number;
}

}  // namespace

// The current registrar's record; where it has none, a former one's, which a placement left behind.
Result<SharedRecord> ClusterRepository::Impl::aliases_record(const ClusterView& now, const std::string& model) const {
  SharedRecord record{.key = aliases_key(model)};
  for (const std::size_t at : now.placement.registrars(model)) {
    FRESHET_ASSIGN(record, now.members[at]->ask([&](Repository& one) { return one.shared_record(record.key); }));
    if (record.value) break;
  }
  return record;
}

bool ClusterRepository::Impl::release_stale_aliases(const ClusterView& now, const MemberPointer& home,
                                                    const VersionName& name) const {
  const auto held = home->ask([&](Repository& at) { return at.aliases(name.model); });
  const auto record = aliases_record(now, name.model);
  if (!held || !record) return false;
  const auto meant = parse(record->value);
  bool any = false;
  for (const Alias& alias : *held) {
    if (alias.number != name.number || !meant || number_of(*meant, alias.name) == name.number) continue;
    any |= home->ask([&](Repository& at) { return at.set_alias(name.model, alias.name, alias.number, 0); }).has_value();
  }
  return any;
}

Result<std::vector<Alias>> ClusterRepository::aliases(const std::string& model) const {
  FRESHET_TRY(check_model_name(model));
  FRESHET_ASSIGN(const SharedRecord record, impl_->aliases_record(*impl_->view(), model));
  return parse(record.value);
}

Status ClusterRepository::set_alias(const std::string& model, const std::string& alias,
                                    std::optional<VersionNumber> expected, VersionNumber desired) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_TRY(check_alias(alias));
  std::optional<Impl::Located> meant;
  if (desired != 0) {
    FRESHET_ASSIGN(meant, impl_->locate(VersionName{.model = model, .number = desired}));
    FRESHET_TRY(
        meant->home->ask([&](Repository& home) { return home.set_alias(model, alias, std::nullopt, desired); }));
  }
  const std::shared_ptr<const ClusterView> now = impl_->refresh();
  const MemberPointer& registrar = now->members[now->placement.registrar(model)];
  VersionNumber before = 0;
  Status moved = fail(Code::unavailable, format("{}@{} is moved by too many at once", model, alias));
  for (int tries = 0; tries < kTriesMax; ++tries) {
    FRESHET_ASSIGN(const SharedRecord record, impl_->aliases_record(*now, model));
    FRESHET_ASSIGN(std::vector<Alias> aliases, parse(record.value));
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
    // An empty record stays, so that no former registrar's is taken for it.
    const SharedRecord next{.key = record.key, .value = text_of(aliases).value_or("")};
    FRESHET_ASSIGN(const SharedRecord own,
                   registrar->ask([&](Repository& at) { return at.shared_record(record.key); }));
    const SharedRecord placed{.key = cluster::kPlacementKey, .value = now->placement.encode()};
    const std::array unchanged{placed, own.value ? record : own};
    moved = registrar->ask([&](Repository& at) { return at.change_shared_records(unchanged, std::span(&next, 1)); });
    if (moved || moved.error().code() != Code::failed_precondition) break;
  }
  if (moved && desired != 0) {
    Status held =
        meant->home->ask([&](Repository& home) { return home.set_alias(model, alias, std::nullopt, desired); });
    if (!held && held.error().code() == Code::not_found) {
      (void)set_alias(model, alias, desired, 0);
      return held;
    }
  }
  // What its home kept for the alias's sake is let go: the version that it meant, or the one that it was not given to.
  const VersionNumber let_go = moved ? before : desired;
  if (let_go != 0 && let_go != (moved ? desired : before)) {
    const auto at = impl_->locate(VersionName{.model = model, .number = let_go});
    if (at) {
      (void)at->home->ask([&](Repository& home) {
        const Status taken = home.set_alias(model, alias, let_go, 0);
        return taken || is_away(taken.error()) ? taken : Status();
      });
    }
  }
  return moved;
}

}  // namespace freshet
