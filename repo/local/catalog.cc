// SPDX-License-Identifier: Apache-2.0
#include "repo/local/catalog.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/words/similar_names.h"
#include "repo/local/collect/kept_blobs.h"

namespace freshet {
namespace {

std::string models_like(const std::string& wanted, const std::map<std::string, Catalog::Versions>& models) {
  if (models.empty()) return "the repository is empty";
  std::vector<std::string> names;
  for (const auto& [model, versions] : models) names.push_back(model);
  return here_are(wanted, names);
}

}  // namespace

Result<Catalog> Catalog::load(const Backend& backend) {
  Catalog catalog;
  Status status = backend.scan(kVersionPrefix, [&](std::string_view key, std::string_view value) {
    const std::optional<VersionName> name = parse_version_key(key);
    if (!name) return true;
    if (Result<VersionRow> row = decode_version_row(value)) {
      catalog.place(*name, std::move(*row), Settled::later);
    } else {
      catalog.models_[name->model].insert_or_assign(name->number, Entry{});
      ++catalog.versions_;
    }
    return true;
  });
  FRESHET_TRY(catalog.unless_damaged(std::move(status)));
  catalog.forest_->settle();
  status = backend.scan(kHighWaterPrefix, [&](std::string_view key, std::string_view value) {
    const std::string model(key.substr(kHighWaterPrefix.size()));
    if (const auto number = parse_number(value)) {
      catalog.high_water_[model] = std::max(catalog.high_water_[model], *number);
    }
    return true;
  });
  FRESHET_TRY(catalog.unless_damaged(std::move(status)));
  status = backend.scan(kSegmentPrefix, [&](std::string_view key, std::string_view value) {
    const Result<SegmentRow> segment = decode_segment_row(value);
    catalog.add_segment(segment ? segment->bytes : 0);
    const auto name = parse_segment_key(key.substr(kSegmentPrefix.size()));
    if (name && segment && segment->base) catalog.set_base(*name, segment->base);
    return true;
  });
  FRESHET_TRY(catalog.unless_damaged(std::move(status)));
  return catalog;
}

Status Catalog::unless_damaged(Status read) {
  if (read || read.error().code() != Code::corrupt) return read;
  unread_ = read.error().message();
  return {};
}

void Catalog::add(const VersionName& name, VersionRow row) { place(name, std::move(row), Settled::now); }

void Catalog::place(const VersionName& name, VersionRow row, Settled settled) {
  ++(row.retired ? retired_ : versions_);
  auto kept = std::make_shared<const VersionRow>(std::move(row));
  if (settled == Settled::now) {
    forest_->set(name, kept);
  } else {
    forest_->set_unsettled(name, kept);
  }
  models_[name.model].insert_or_assign(name.number, Entry{std::move(kept)});
  VersionNumber& high_water = high_water_[name.model];
  high_water = std::max(high_water, name.number);
}

void Catalog::set_base(const SegmentName& segment, const std::optional<SegmentName>& base) {
  if (base) {
    bases_.insert_or_assign(segment, *base);
  } else {
    bases_.erase(segment);
  }
}

std::optional<SegmentName> Catalog::base_of(const SegmentName& segment) const {
  const auto found = bases_.find(segment);
  if (found == bases_.end()) return std::nullopt;
  return found->second;
}

void Catalog::add_segment(std::uint64_t bytes) {
  ++segments_;
  segment_bytes_ += bytes;
}

void Catalog::drop_segment(std::uint64_t bytes) {
  --segments_;
  segment_bytes_ -= bytes;
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
  const VersionForest::Node node = forest_->find(id);
  if (node == VersionForest::kNone) return std::nullopt;
  return forest_->name(node);
}

std::shared_ptr<const VersionRow> Catalog::row_of(const VersionId& id) const {
  const VersionForest::Node node = forest_->find(id);
  return node == VersionForest::kNone ? nullptr : forest_->row(node);
}

Result<VersionForest::Node> Catalog::node_of(const VersionName& name) const {
  if (const auto model = models_.find(name.model); model != models_.end()) {
    const auto version = model->second.find(name.number);
    if (version != model->second.end() && version->second.row != nullptr) {
      return forest_->find(version->second.row->id);
    }
  }
  FRESHET_ASSIGN(const Found found, find(name));
  return forest_->find(found.row->id);
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
