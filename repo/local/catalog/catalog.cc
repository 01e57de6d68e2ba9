// SPDX-License-Identifier: Apache-2.0
#include "repo/local/catalog/catalog.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/words/similar_names.h"
#include "repo/local/catalog/kept_blobs.h"

namespace freshet {
namespace {

std::string models_like(const std::string& wanted, const std::map<std::string, Catalog::Versions>& models) {
  if (models.empty()) return "the repository is empty";
  std::vector<std::string> names;
  for (const auto& [model, versions] : models) names.push_back(model);
  return here_are(wanted, names);
}

}  // namespace

// Keys come in the order in which the maps have them, so each one's place is at the end, or where the last one's was.
Result<Catalog> Catalog::load(const Backend& backend) {
  Catalog catalog;
  auto model = catalog.models_.end();
  Status status = backend.scan(kVersionPrefix, [&](std::string_view key, std::string_view value) {
    std::optional<VersionName> name = parse_version_key(key);
    if (!name) return true;
    if (model == catalog.models_.end() || model->first != name->model) {
      model = catalog.models_.emplace_hint(catalog.models_.end(), name->model, Versions());
    }
    Result<VersionRow> row = decode_version_row(value);
    Entry entry;
    if (row) {
      ++(row->retired ? catalog.retired_ : catalog.versions_);
      catalog.greatest_commit_ = std::max(catalog.greatest_commit_, row->commit);
      entry.row = std::make_shared<const VersionRow>(*std::move(row));
    } else {
      ++catalog.versions_;
    }
    model->second.insert_or_assign(model->second.end(), name->number, std::move(entry));
    return true;
  });
  FRESHET_TRY(unless_damaged(std::move(status), catalog.unread_));
  if (backend.read_only()) return catalog;
  (void)catalog.grown_forest();  // Here, where no reader waits for a lock: an owner's first put asks for it.
  status = backend.scan(kHighWaterPrefix, [&](std::string_view key, std::string_view value) {
    if (const auto number = parse_number(value)) {
      const std::string_view of = key.substr(kHighWaterPrefix.size());
      catalog.high_water_.emplace_hint(catalog.high_water_.end(), of, *number);
    }
    return true;
  });
  FRESHET_TRY(unless_damaged(std::move(status), catalog.unread_));
  return catalog;
}

Result<Catalog::Segments> Catalog::read_segments(const Backend& backend) {
  Segments segments;
  Status status = backend.scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const Result<SegmentRow> segment = decode_segment_row(value);
    ++segments.count;
    segments.bytes += segment ? segment->bytes : 0;
    if (!segment || !segment->base) return true;
    if (const auto name = parse_segment_key(key.substr(kSegmentPrefix.size()))) {
      segments.bases.insert_or_assign(*name, *segment->base);
    }
    return true;
  });
  FRESHET_TRY(unless_damaged(std::move(status), segments.unread));
  return segments;
}

void Catalog::set_segments(Segments segments) {
  if (!segments.unread.empty()) unread_ = segments.unread;
  segments_ = std::move(segments);
  has_segments_ = true;
}

VersionForest& Catalog::grown_forest() const {
  if (forest_ != nullptr) return *forest_;
  const auto grown = std::make_shared<VersionForest>();
  for (const auto& [model, versions] : models_) {
    for (const auto& [number, entry] : versions) {
      if (entry.row != nullptr) grown->set_unsettled({.model = model, .number = number}, entry.row);
    }
  }
  grown->settle();
  forest_ = grown;  // Whole, also where memory ran out on the way.
  return *forest_;
}

Status Catalog::unless_damaged(Status read, std::string& unread) {
  if (read || read.error().code() != Code::corrupt) return read;
  unread = read.error().message();
  return {};
}

void Catalog::add(const VersionName& name, VersionRow row) {
  ++(row.retired ? retired_ : versions_);
  greatest_commit_ = std::max(greatest_commit_, row.commit);
  auto kept = std::make_shared<const VersionRow>(std::move(row));
  grown_forest().set(name, kept);
  models_[name.model].insert_or_assign(name.number, Entry{std::move(kept)});
  VersionNumber& high_water = high_water_[name.model];
  high_water = std::max(high_water, name.number);
}

void Catalog::set_base(const SegmentName& segment, const std::optional<SegmentName>& base) {
  if (base) {
    segments_.bases.insert_or_assign(segment, *base);
  } else {
    segments_.bases.erase(segment);
  }
}

std::optional<SegmentName> Catalog::base_of(const SegmentName& segment) const {
  const auto found = segments_.bases.find(segment);
  if (found == segments_.bases.end()) return std::nullopt;
  return found->second;
}

void Catalog::add_segment(std::uint64_t bytes) {
  ++segments_.count;
  segments_.bytes += bytes;
}

void Catalog::drop_segment(std::uint64_t bytes) {
  --segments_.count;
  segments_.bytes -= bytes;
}

void Catalog::retire(const VersionName& name, VersionRow tombstone) {
  --versions_;
  add(name, std::move(tombstone));
}

void Catalog::replace(const VersionName& name, VersionRow row) {
  --versions_;
  add(name, std::move(row));
}

std::optional<VersionNumber> Catalog::newest(const Versions& versions) {
  for (auto at = versions.rbegin(); at != versions.rend(); ++at) {
    if (at->second.row == nullptr || !at->second.row->retired) return at->first;
  }
  return std::nullopt;
}

std::uint64_t Catalog::live_models() const {
  return static_cast<std::uint64_t>(std::count_if(models_.begin(), models_.end(),
                                                  [](const auto& model) { return newest(model.second).has_value(); }));
}

Result<Catalog::Found> Catalog::find(const VersionName& name) const {
  FRESHET_ASSIGN(Found found, find_or_tombstone(name));
  if (found.row->retired) {
    return fail(Code::not_found, name.number != 0 ? format("{} was retired", to_string(found.name))
                                                  : format("all versions of {} were retired", name.model));
  }
  return found;
}

Result<Catalog::Found> Catalog::find_or_tombstone(const VersionName& name) const {
  const auto model = models_.find(name.model);
  if (model == models_.end()) {
    return fail(Code::not_found, format("no model {}; {}", name.model, models_like(name.model, models_)));
  }
  const Versions& versions = model->second;
  const auto found =
      versions.find(name.number != 0 ? name.number : newest(versions).value_or(versions.rbegin()->first));
  if (found == versions.end()) {
    return fail(Code::not_found, format("no version {}; {} has {} of them, {} to {}", to_string(name), name.model,
                                        versions.size(), versions.begin()->first, versions.rbegin()->first));
  }
  VersionName full{.model = name.model, .number = found->first};
  if (found->second.row == nullptr) return fail(Code::corrupt, format("{}: its record is damaged", to_string(full)));
  return Found{.name = std::move(full), .row = found->second.row};
}

std::optional<VersionName> Catalog::find(const VersionId& id) const {
  const VersionForest& forest = grown_forest();
  const VersionForest::Node node = forest.find(id);
  if (node == VersionForest::kNone) return std::nullopt;
  return forest.name(node);
}

std::shared_ptr<const VersionRow> Catalog::row_of(const VersionId& id) const {
  const VersionForest& forest = grown_forest();
  const VersionForest::Node node = forest.find(id);
  return node == VersionForest::kNone ? nullptr : forest.row(node);
}

Result<VersionForest::Node> Catalog::node_of(const VersionName& name) const {
  if (const auto model = models_.find(name.model); model != models_.end()) {
    const auto version = model->second.find(name.number);
    if (version != model->second.end() && version->second.row != nullptr) {
      return grown_forest().find(version->second.row->id);
    }
  }
  FRESHET_ASSIGN(const Found found, find(name));
  return grown_forest().find(found.row->id);
}

bool Catalog::has_name(const VersionName& name) const {
  const auto model = models_.find(name.model);
  return model != models_.end() && model->second.count(name.number) != 0;
}

VersionNumber Catalog::high_water(const std::string& model) const {
  const auto found = high_water_.find(model);
  const VersionNumber marked = found == high_water_.end() ? 0 : found->second;
  const auto versions = models_.find(model);
  return versions == models_.end() ? marked : std::max(marked, versions->second.rbegin()->first);
}

std::map<std::string, VersionNumber> Catalog::high_waters() const {
  std::map<std::string, VersionNumber> all = high_water_;
  for (const auto& [model, versions] : models_) {
    VersionNumber& greatest = all[model];
    greatest = std::max(greatest, versions.rbegin()->first);
  }
  return all;
}

Status remove_leftover_blobs(Backend& backend, const Catalog& catalog,
                             const std::function<bool(std::string_view key)>& in_use) {
  // Both lists come in the order of the same keys, so one pass tells which blobs have no record.
  KeptBlobs kept;
  FRESHET_TRY(backend.scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    kept.add(key.substr(kSegmentPrefix.size()), value);
    return true;
  }));
  std::vector<std::string> leftover;
  const Status listed = backend.list_blobs([&](std::string_view key, std::uint64_t) {
    if (kept.keeps(key)) return true;
    const std::optional<SegmentName> segment = segment_of_blob(key);
    const auto writer = segment ? catalog.row_of(segment->writer) : nullptr;
    if ((writer == nullptr || !writer->retired) && !in_use(key)) leftover.emplace_back(key);
    return true;
  });
  if (!listed && listed.error().code() != Code::corrupt) return listed;  // Others are told of damage: verify, gc.
  if (leftover.empty()) return {};
  for (const std::string& key : leftover) FRESHET_TRY(backend.erase_blob(key));
  return backend.reclaim();
}

}  // namespace freshet
