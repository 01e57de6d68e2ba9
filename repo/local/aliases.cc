// SPDX-License-Identifier: Apache-2.0
/// Aliases: names of versions within a model, moved by compare-and-swap.

#include <algorithm>

#include "core/base/format.h"
#include "repo/local/local_repository.h"

namespace freshet {
namespace {

constexpr std::size_t kAliasBytesMax = 64;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_alias_character(char c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-'; }

Result<VersionNumber> number_at(const Backend& backend, const std::string& key) {
  const Result<std::string> stored = backend.get(key);
  if (!stored && stored.error().code() == Code::not_found) return 0;
  if (!stored) return fail(stored.error());
  return parse_number(*stored);
}

std::string meaning(VersionNumber number) { return number == 0 ? "no version" : format("version {}", number); }

}  // namespace

Status check_alias(std::string_view alias) {
  if (alias.empty() || alias.size() > kAliasBytesMax || !is_letter(alias.front()) ||
      !std::all_of(alias.begin(), alias.end(), is_alias_character)) {
    return fail(Code::invalid_argument,
                format("an alias is a letter, then up to {} of A-Z a-z 0-9 . _ -", kAliasBytesMax - 1));
  }
  return {};
}

Result<VersionReference> parse_version_reference(std::string_view text) {
  const std::size_t at = text.find('@');
  VersionReference reference;
  if (at == std::string_view::npos || at + 1 == text.size() || !is_letter(text[at + 1])) {
    FRESHET_ASSIGN(reference.name, parse_version_name(text));
    return reference;
  }
  FRESHET_TRY(check_model_name(text.substr(0, at)));
  FRESHET_TRY(check_alias(text.substr(at + 1)));
  reference.name.model = text.substr(0, at);
  reference.alias = text.substr(at + 1);
  return reference;
}

Result<VersionName> VersionCatalog::resolve(std::string_view text) const {
  FRESHET_ASSIGN(VersionReference reference, parse_version_reference(text));
  if (reference.alias.empty()) return std::move(reference.name);
  FRESHET_ASSIGN(const std::vector<Alias> known, aliases(reference.name.model));
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const Alias& alias) { return alias.name == reference.alias; });
  if (found == known.end()) {
    return fail(Code::not_found, format("{} has no alias {}", reference.name.model, reference.alias));
  }
  return VersionName{.model = std::move(reference.name.model), .number = found->number};
}

Status LocalRepository::set_alias(const std::string& model, const std::string& alias,
                                  std::optional<VersionNumber> expected, VersionNumber desired) {
  return impl_->set_alias(model, alias, expected, desired, false);
}

Status LocalRepository::keep_for_alias(const std::string& model, const std::string& alias,
                                       std::optional<VersionNumber> expected, VersionNumber desired) {
  return impl_->set_alias(model, alias, expected, desired, true);
}

Status LocalRepository::Impl::set_alias(const std::string& model, const std::string& alias,
                                        std::optional<VersionNumber> expected, VersionNumber desired,
                                        bool is_decided_elsewhere) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_TRY(check_alias(alias));
  const WritersTurn my_turn(*this);
  FRESHET_TRY(ready_to_write());
  FRESHET_ASSIGN(const bool is_shared, is_one_of_several());
  if (is_shared && !is_decided_elsewhere) {
    return fail(Code::unsupported,
                "this is one provider of several; an alias moves for all of them together: open the repository of all "
                "providers again");
  }
  const std::string key = alias_key(model, alias);
  if (expected) {
    FRESHET_ASSIGN(const VersionNumber now, number_at(*backend, key));
    if (*expected != now) {
      return fail(Code::failed_precondition,
                  format("{}@{} means {} now, not {}", model, alias, meaning(now), meaning(*expected)));
    }
  }
  if (desired == 0) return apply({Backend::Erase{key}});
  FRESHET_ASSIGN(const Catalog::Found found, find({.model = model, .number = desired}));
  return apply({Backend::Put{key, std::to_string(found.name.number)}});
}

Result<std::vector<Alias>> LocalRepository::aliases(const std::string& model) const {
  FRESHET_TRY(check_model_name(model));
  return impl_->aliases(model);
}

Result<std::vector<Alias>> LocalRepository::Impl::aliases(const std::string& model) const {
  const std::string prefix = alias_prefix(model);
  std::vector<Alias> all;
  Status damaged;
  FRESHET_TRY(backend->scan(prefix, [&](std::string_view key, std::string_view value) {
    const std::string_view name = key.substr(prefix.size());
    const auto number = parse_number(value);
    if (!number || !check_alias(name)) {
      damaged = fail(Code::corrupt, format("{}@{}: its record is damaged", model, name));
      return false;
    }
    all.push_back({.name = std::string(name), .number = *number});
    return true;
  }));
  FRESHET_TRY(damaged);
  return all;
}

Result<std::vector<std::string>> LocalRepository::Impl::aliases_of(const VersionName& name) const {
  const std::string prefix = alias_prefix(name.model);
  std::vector<std::string> names;
  FRESHET_TRY(backend->scan(prefix, [&](std::string_view key, std::string_view value) {
    // A damaged one may mean any version: it keeps them all until it is set anew.
    const auto number = parse_number(value);
    if (!number || *number == name.number) names.push_back(format("{}@{}", name.model, key.substr(prefix.size())));
    return true;
  }));
  return names;
}

}  // namespace freshet
