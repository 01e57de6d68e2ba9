// SPDX-License-Identifier: Apache-2.0
#include "repo/levels/job_catalog.h"

#include <algorithm>

#include "core/base/format.h"
#include "repo/levels/external_level.h"
#include "repo/levels/resting.h"

namespace freshet::levels {

Result<std::unique_ptr<JobCatalog>> JobCatalog::open(std::vector<std::string> folders) {
  auto opened = std::unique_ptr<JobCatalog>(new JobCatalog(std::move(folders)));
  FRESHET_ASSIGN(const std::vector<std::string> models, ShardFolders::models(opened->folders_));
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const auto shards, ShardFolders::open_to_read(opened->folders_, model));
    std::map<Version, std::vector<HeldShard>> held;
    std::vector<std::string> damaged;
    for (HeldShard& shard : shards->scan(&damaged)) {
      if (shard.kind != ShardKind::parity) held[shard.key.version].push_back(std::move(shard));
    }
    Entries entries;  // Of two lives that gave one number, the later one's.
    for (const auto& [version, parts] : held) entries.insert_or_assign(version.number, entry_of(*shards, parts));
    const Manifest* before = nullptr;
    for (auto& [number, entry] : entries) {
      Manifest& manifest = entry.record.manifest;
      if (before != nullptr) {
        manifest.ancestor = before->id;
        manifest.ancestor_name = entry.row.ancestor = before->name;
      }
      before = &manifest;
    }
    if (!entries.empty() || !damaged.empty()) opened->models_.emplace(model, std::move(entries));
  }
  if (!opened->models_.empty()) return opened;
  std::string places;
  for (const std::string& folder : opened->folders_) places += (places.empty() ? "" : ", ") + folder;
  return fail(Code::not_found, format("{}: there is no checkpoint", places));
}

/// `shards`: own ones and copies, all of one version.
JobCatalog::Entry JobCatalog::entry_of(const ShardFolders& folders, std::span<const HeldShard> shards) {
  const ShardKey& key = shards.front().key;
  Entry entry{.row = {.version = {folders.model(), key.version.number},
                      .ancestor = {},
                      .retired = std::ranges::all_of(shards, &HeldShard::bytes_only)},
              .record = {},
              .owners = {},
              .damage = {}};
  Manifest& manifest = entry.record.manifest;
  manifest.name = entry.row.version;
  manifest.id = key.version.id;
  manifest.step = shards.front().step;
  manifest.tags = {{std::string(kRanksTag), format("{}", key.ranks)}};
  std::shared_ptr<const TensorTable> table;
  std::vector<std::optional<Version>> writers;
  for (const HeldShard& shard : shards) {
    const Result<DescribedShard> described = folders.describe(shard.key, shard.kind);
    if (!described) entry.damage = described.error();
    if (!described || (table != nullptr && described->cut.table->digest != table->digest)) continue;
    table = described->cut.table;
    manifest.created_unix_ns = described->header.created_unix_ns;
    writers.resize(table->tensors.size());
    add_writers(described->header, described->cut.pieces, writers);
  }
  if (table == nullptr) return entry;
  const auto architecture = architecture_of(*table);
  entry.damage = architecture ? std::nullopt : std::optional(architecture.error());
  if (!architecture) return entry;
  manifest.architecture = *architecture;
  entry.owners.resize(table->tensors.size());
  for (std::size_t i = 0; i < table->tensors.size(); ++i) {
    const TensorSpec& spec = table->tensors[i].spec;
    const Version writer = writers[i].value_or(Version());  // No rank that is here stores a piece of it.
    OwnerRow& row = entry.owners[*manifest.architecture->tensor_named(spec.name)];
    row = {.tensor = spec.name, .owner = {}, .segment = {}, .bytes = spec.bytes()};
    if (writer.number != 0) row.owner = {folders.model(), writer.number};
    if (writers[i]) (writer == key.version ? entry.row.own_bytes : entry.row.inherited_bytes) += row.bytes;
  }
  entry.record.own_bytes = entry.row.own_bytes;
  entry.record.inherited_bytes = entry.row.inherited_bytes;
  return entry;
}

Result<const JobCatalog::Entries*> JobCatalog::entries_of(const std::string& model) const {
  const auto found = models_.find(model);
  if (found != models_.end()) return &found->second;
  return fail(Code::not_found, format("there is no checkpoint of {}", model));
}

Result<JobCatalog::Entries::const_iterator> JobCatalog::find(const VersionName& name) const {
  FRESHET_ASSIGN(const Entries* const entries, entries_of(name.model));
  std::string there;
  auto found = entries->end();
  for (auto at = entries->begin(); at != entries->end(); ++at) {
    const bool is_asked = name.number == 0 ? !at->second.row.retired : at->first == name.number;
    if (is_asked) found = at;
    if (!at->second.row.retired) there += format("{}{}", there.empty() ? "" : ", ", at->first);
  }
  if (found != entries->end()) return found;
  if (there.empty()) {
    return fail(Code::not_found,
                format("there is no checkpoint {}, and no other one of {} that can be read: freshet repo "
                       "verify names damaged files",
                       to_string(name), name.model));
  }
  return fail(Code::not_found, format("there is no checkpoint {}; there are versions {}", to_string(name), there));
}

Result<std::vector<ModelRow>> JobCatalog::model_rows() const {
  std::vector<ModelRow> rows;
  for (const auto& [model, entries] : models_) {
    ModelRow row{.model = model};
    for (const auto& [number, entry] : entries) {
      if (!entry.row.retired) row.add(number, entry.row.quality);
    }
    if (row.versions > 0) rows.push_back(std::move(row));
  }
  return rows;
}

Result<std::vector<LineageRow>> JobCatalog::versions(const std::string& model) const {
  FRESHET_ASSIGN(const Entries* const entries, entries_of(model));
  std::vector<LineageRow> rows;
  for (const auto& [number, entry] : *entries) rows.push_back(entry.row);
  return rows;
}

Result<VersionRecord> JobCatalog::get(const VersionName& name) const {
  FRESHET_ASSIGN(const auto found, find(name));
  const Entry& entry = found->second;
  if (entry.row.retired) {
    return fail(Code::not_found, format("{}: the job let go of this checkpoint, and newer ones need some of its bytes",
                                        to_string(entry.row.version)));
  }
  if (entry.damage) return fail(Error(*entry.damage).with_context(to_string(entry.row.version)));
  return entry.record;
}

Result<std::vector<OwnerRow>> JobCatalog::owners(const VersionName& name) const {
  FRESHET_TRY(get(name));
  FRESHET_ASSIGN(const auto found, find(name));
  return found->second.owners;
}

Result<std::vector<LineageRow>> JobCatalog::lineage(const VersionName& name) const {
  FRESHET_ASSIGN(auto at, find(name));
  FRESHET_ASSIGN(const Entries* const entries, entries_of(name.model));
  std::vector<LineageRow> rows = {at->second.row};
  while (at != entries->begin()) rows.push_back((--at)->second.row);
  return rows;
}

Result<VerifyReport> JobCatalog::verify(const std::optional<VersionName>& name, const Progress&) const {
  std::optional<VersionName> only;
  if (name) {
    FRESHET_ASSIGN(const auto found, find(*name));
    only = found->second.row.version;
    if (found->second.row.retired) return fail(get(*only).error());
  }
  VerifyReport report;
  for (const auto& [model, entries] : models_) {
    if (only && only->model != model) continue;
    FRESHET_ASSIGN(const auto resting, RestingCheckpoints::open(folders_, std::shared_ptr<Repository>(), model));
    FRESHET_TRY(resting.verify(report, only ? std::optional(only->number) : std::nullopt));
  }
  return report;
}

}  // namespace freshet::levels
