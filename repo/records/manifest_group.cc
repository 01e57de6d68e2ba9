// SPDX-License-Identifier: Apache-2.0
#include "repo/records/manifest_group.h"

#include <algorithm>
#include <vector>

#include "core/base/format.h"

namespace freshet {
namespace {

/// What an entry costs besides its bytes: the version's own row and the like. So a group has no more entries than its
/// bytes allow.
constexpr std::uint64_t kEntryCost = 128;

}  // namespace

Result<ManifestGroup> ManifestGroup::load(const Backend& backend, std::uint64_t number, const Backend::Batch* batch) {
  ManifestGroup group(number);
  Status scanned = backend.scan(group_prefix(number), [&](std::string_view key, std::string_view value) {
    if (const auto entry = parse_entry_key(number, key)) group.entries_.emplace(*entry, value);
    return true;
  });
  if (!scanned && scanned.error().code() != Code::corrupt) return fail(std::move(scanned).error());
  group.is_whole_ = scanned.has_value();
  if (batch == nullptr) return group;
  for (const auto& change : *batch) {
    const auto* put = std::get_if<Backend::Put>(&change);
    const auto* erase = std::get_if<Backend::Erase>(&change);
    if (put == nullptr && erase == nullptr) continue;
    const auto entry = parse_entry_key(number, put != nullptr ? put->key : erase->key);
    if (!entry) continue;
    if (put != nullptr) {
      group.entries_.insert_or_assign(*entry, put->value);
    } else {
      group.entries_.erase(*entry);
    }
  }
  return group;
}

std::uint64_t ManifestGroup::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [entry, value] : entries_) bytes += kEntryCost + value.size();
  return bytes;
}

Result<const UnprovedManifest*> ManifestGroup::decode(std::uint32_t entry) {
  const auto in_context = [&](Error error, std::uint32_t damaged) {
    if (damaged == entry) return error;
    return std::move(error).with_context(format("its manifest rests on entry {}.{}", number_, damaged));
  };
  // From the entry to the nearest that is decoded or whole, then back.
  std::vector<std::uint32_t> path;
  std::optional<std::uint32_t> at = entry;
  while (at && decoded_.count(*at) == 0) {
    const auto found = entries_.find(*at);
    if (found == entries_.end() && *at != entry) {
      return fail(Code::corrupt, format("its manifest rests on entry {}.{}, which is missing", number_, *at));
    }
    if (found == entries_.end()) return fail(Code::corrupt, "its manifest is missing");
    if (path.size() == entries_.size()) return fail(Code::corrupt, "its manifest is damaged");  // A circle.
    path.push_back(*at);
    Result<std::optional<std::uint32_t>> base = base_of_entry(found->second);
    if (!base) return fail(in_context(std::move(base).error(), *at));
    at = *base;
  }
  const UnprovedManifest* base = at ? decoded_.at(*at).get() : nullptr;
  std::reverse(path.begin(), path.end());
  for (const std::uint32_t next : path) {
    Result<UnprovedManifest> decoded = decode_entry(entries_.at(next), base != nullptr ? &base->manifest : nullptr);
    if (!decoded) return fail(in_context(std::move(decoded).error(), next));
    auto kept = std::make_unique<const UnprovedManifest>(*std::move(decoded));
    base = kept.get();
    decoded_.insert_or_assign(next, std::move(kept));
  }
  return base;
}

Result<std::optional<std::uint32_t>> ManifestGroup::base_of(std::uint32_t entry) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) return fail(Code::corrupt, "its manifest is missing");
  return base_of_entry(found->second);
}

std::map<std::uint32_t, std::size_t> ManifestGroup::based_on(std::uint32_t entry) const {
  std::map<std::uint32_t, std::size_t> found;
  for (const auto& [number, value] : entries_) {
    const auto base = base_of_entry(value);
    if (base && *base == entry) found.emplace(number, value.size());
  }
  return found;
}

}  // namespace freshet
