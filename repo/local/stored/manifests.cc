// SPDX-License-Identifier: Apache-2.0
#include "repo/local/stored/manifests.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/model/proved_forms.h"
#include "repo/records/manifest_group.h"

namespace freshet {
namespace {

/// A group's bytes, in whole manifests.
constexpr std::uint64_t kGroupShare = 2;

}  // namespace

Result<Manifest> StoredManifests::proved_alone(const VersionName& name, const VersionRow& row,
                                               const UnprovedManifest& decoded) {
  const bool same = decoded.architecture == row.architecture &&
                    digest_of(encode_unchecked(decoded.manifest, decoded.architecture)) == row.manifest;
  if (!same) return fail(Code::corrupt, "its manifest is damaged");
  if (decoded.manifest.id != row.id || decoded.manifest.name != name) {
    return fail(Code::corrupt, "its record holds the manifest of " + to_string(decoded.manifest.name));
  }
  return decoded.manifest;
}

Result<Manifest> StoredManifests::proved(const VersionName& name, const VersionRow& row,
                                         const UnprovedManifest& decoded) const {
  FRESHET_ASSIGN(Manifest manifest, proved_alone(name, row, decoded));
  FRESHET_ASSIGN(manifest.architecture, architectures_.get(row.architecture));
  if (!check(manifest)) return fail(Code::corrupt, "its manifest is damaged");
  return manifest;
}

// The version that differs least, as far as one can tell without reading them: the ancestor, or else the model's
// newest.
std::shared_ptr<const VersionRow> StoredManifests::base_row_for(const Manifest& manifest) const {
  const MutexLock lock(known_.mutex);
  const auto usable = [](const std::shared_ptr<const VersionRow>& row) { return row != nullptr && !row->retired; };
  if (manifest.ancestor) {
    if (auto row = known_.catalog.row_of(*manifest.ancestor); usable(row)) return row;
  }
  const auto model = known_.catalog.models().find(manifest.name.model);
  if (model == known_.catalog.models().end() || model->second.empty()) return nullptr;
  auto newest = model->second.rbegin()->second.row;
  return usable(newest) ? newest : nullptr;
}

Status StoredManifests::store(Backend::Batch& batch, const Manifest& manifest, VersionRow& row) const {
  const std::vector<std::byte> encoded = encode(manifest);
  if (encoded.size() > kManifestBytesMax) {
    return fail(Code::invalid_argument,
                format("the manifest has {} bytes, more than {}", encoded.size(), kManifestBytesMax));
  }
  row.manifest = digest_of(encoded);
  row.group = row.commit;  // As unique as the commit that begins it.
  row.entry = 0;
  const std::shared_ptr<const VersionRow> base = base_row_for(manifest);
  if (base == nullptr) {
    batch.push_back(Backend::Put{entry_key(row.group, row.entry), encode_entry(manifest, nullptr)});
    return {};
  }
  FRESHET_ASSIGN(ManifestGroup group, ManifestGroup::load(backend_, base->group, &batch));
  // A damaged base is none.
  const auto decoded = group.decode(base->entry);
  if (decoded && (*decoded)->manifest.id == base->id && group.is_whole()) {
    const EntryBase from{.entry = base->entry, .manifest = (*decoded)->manifest};
    std::string entry = encode_entry(manifest, &from);
    if (group.bytes() + entry.size() <= kGroupShare * whole_entry_bytes(manifest)) {
      row.group = group.number();
      row.entry = group.next_entry();
      batch.push_back(Backend::Put{entry_key(row.group, row.entry), std::move(entry)});
      return {};
    }
  }
  batch.push_back(Backend::Put{entry_key(row.group, row.entry), encode_entry(manifest, nullptr)});
  return {};
}

Status StoredManifests::erase(Backend::Batch& batch, const VersionRow& row) const {
  FRESHET_ASSIGN(ManifestGroup group, ManifestGroup::load(backend_, row.group, &batch));
  const std::map<std::uint32_t, std::size_t> children = group.based_on(row.entry);
  if (children.empty()) {
    batch.push_back(Backend::Erase{entry_key(row.group, row.entry)});
    return {};
  }
  // The child that differs least takes its place, and the others are based on that one.
  const auto heir = std::min_element(children.begin(), children.end(), [](const auto& a, const auto& b) {
                      return a.second < b.second;
                    })->first;
  Backend::Batch moved;
  const auto base = group.base_of(row.entry);
  if (!base) return {};  // Damaged: as below.
  for (const auto& [child, bytes] : children) {
    const std::optional<std::uint32_t> onto = child == heir ? *base : heir;
    const Result<std::string> entry = rebased(group, child, onto);
    // What is damaged is left as it is, and so is what it needs.
    if (!entry && entry.error().code() == Code::corrupt) return {};
    if (!entry) return fail(entry.error());
    moved.push_back(Backend::Put{entry_key(row.group, child), *entry});
  }
  for (auto& change : moved) batch.push_back(std::move(change));
  batch.push_back(Backend::Erase{entry_key(row.group, row.entry)});
  return {};
}

// Only what is proved is written anew.
Result<std::string> StoredManifests::rebased(ManifestGroup& group, std::uint32_t entry,
                                             std::optional<std::uint32_t> base) const {
  FRESHET_ASSIGN(const UnprovedManifest* decoded, group.decode(entry));
  const VersionName& name = decoded->manifest.name;
  FRESHET_ASSIGN(const Catalog::Found version, known_.find(name));
  FRESHET_ASSIGN(const Manifest manifest, proved(name, *version.row, *decoded));
  if (!base) return encode_entry(manifest, nullptr);
  FRESHET_ASSIGN(const UnprovedManifest* onto, group.decode(*base));
  const EntryBase from{.entry = *base, .manifest = onto->manifest};
  std::string rebased = encode_entry(manifest, &from);
  if (rebased.size() > whole_entry_bytes(manifest)) rebased = encode_entry(manifest, nullptr);
  return rebased;
}

Result<Manifest> StoredManifests::get(const VersionName& name, const VersionRow& row) const {
  Result<Manifest> manifest = get_from_group(name, row);
  if (!manifest) return fail(std::move(manifest).error().with_context(to_string(name)));
  return manifest;
}

Result<Manifest> StoredManifests::get_from_group(const VersionName& name, const VersionRow& row) const {
  FRESHET_ASSIGN(ManifestGroup group, ManifestGroup::load(backend_, row.group, nullptr));
  FRESHET_ASSIGN(const UnprovedManifest* decoded, group.decode(row.entry));
  return proved(name, row, *decoded);
}

Status StoredManifests::for_each(const Each& each) const {
  return for_each_decoded([this](const VersionName& name, const VersionRow& row,
                                 const UnprovedManifest& decoded) { return proved(name, row, decoded); },
                          each);
}

Status StoredManifests::for_each_owner_map(const Each& each) const { return for_each_decoded(&proved_alone, each); }

Status StoredManifests::for_each_decoded(const Prove& prove, const Each& each) const {
  std::vector<std::pair<VersionName, std::shared_ptr<const VersionRow>>> rows;
  {
    const MutexLock lock(known_.mutex);
    for (const auto& [model, versions] : known_.catalog.models()) {
      for (const auto& [number, entry] : versions) {
        if (entry.row == nullptr || entry.row->retired) continue;
        rows.emplace_back(VersionName{.model = model, .number = number}, entry.row);
      }
    }
  }
  // A group at a time, so that each is read once.
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second->group < b.second->group; });
  std::optional<ManifestGroup> group;
  for (const auto& [name, row] : rows) {
    if (!group || group->number() != row->group) {
      Result<ManifestGroup> loaded = ManifestGroup::load(backend_, row->group, nullptr);
      if (!loaded && loaded.error().code() == Code::corrupt) {
        group.reset();
        FRESHET_TRY(each(name, *row, fail(std::move(loaded).error().with_context(to_string(name)))));
        continue;
      }
      if (!loaded) return fail(std::move(loaded).error());
      group = *std::move(loaded);
    }
    const auto decoded = group->decode(row->entry);
    Result<Manifest> manifest = decoded ? prove(name, *row, **decoded) : Result<Manifest>(fail(decoded.error()));
    if (!manifest) manifest = fail(std::move(manifest).error().with_context(to_string(name)));
    FRESHET_TRY(each(name, *row, manifest));
  }
  return {};
}

}  // namespace freshet
