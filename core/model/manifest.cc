// SPDX-License-Identifier: Apache-2.0
#include "core/model/manifest.h"

#include <unordered_set>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

template <typename Value>
Status check_keys(std::string_view what, const std::vector<std::pair<std::string, Value>>& entries,
                  std::size_t count_max) {
  if (entries.size() > count_max)
    return refuse(format("{} {}s, over the limit of {}", entries.size(), what, count_max));
  std::unordered_set<std::string_view> seen;
  for (const auto& entry : entries) {
    FRESHET_TRY(check_label(format("the name of a {}", what), entry.first, kTagKeyBytesMax));
    if (!seen.insert(entry.first).second) return refuse(format("two {}s are named {}", what, shown(entry.first)));
  }
  return {};
}

Status check_names(const Manifest& manifest) {
  FRESHET_TRY(check_model_name(manifest.name.model));
  if (manifest.name.number == 0) return refuse("versions count from 1");
  const VersionName& ancestor = manifest.ancestor_name;
  if (ancestor == VersionName{}) return {};
  if (!manifest.ancestor) return refuse("an ancestor's name without its id");
  FRESHET_TRY(check_model_name(ancestor.model));
  if (ancestor.number == 0) return refuse("the ancestor's number is 0; versions count from 1");
  return {};
}

Status check_owners(const Manifest& manifest) {
  const std::size_t tensors = manifest.architecture->tensors().size();
  if (manifest.owners.size() != tensors || manifest.digests.size() != tensors) {
    return refuse(
        format("{} owners and {} digests for {} tensors", manifest.owners.size(), manifest.digests.size(), tensors));
  }
  for (std::size_t i = 0; i < tensors; ++i) {
    const SegmentName& owner = manifest.owners[i];
    if (owner.tensor >= kTensorsMax) return refuse(format("owner {} is out of range", to_string(owner)));
    if (owner.writer == manifest.id && owner.tensor != i) {
      return refuse(format("the owner map names tensor {} as this version's own tensor {}", i, owner.tensor));
    }
  }
  return {};
}

Status check_content(const Manifest& manifest) {
  FRESHET_TRY(check_names(manifest));
  FRESHET_TRY(check_annotations(manifest.metrics, manifest.tags));
  return check_owners(manifest);
}

}  // namespace

Status check_annotations(const Metrics& metrics, const Tags& tags) {
  FRESHET_TRY(check_keys("metric", metrics, kMetricsMax));
  FRESHET_TRY(check_keys("tag", tags, kTagsMax));
  for (const auto& tag : tags) {
    FRESHET_TRY(check_text(format("tag {}", shown(tag.first)), tag.second, kTagValueBytesMax));
  }
  return {};
}

Status check(const Manifest& manifest) {
  if (manifest.architecture == nullptr) return refuse("a manifest without an architecture");
  Status status = check_content(manifest);
  if (status) return status;
  const std::string what = format("manifest of {}@{}", shown(manifest.name.model), manifest.name.number);
  return fail(std::move(status).error().with_context(what));
}

OwnerMap OwnerMap::all_written_by(const VersionId& writer, std::size_t tensors) {
  std::vector<SegmentName> owners(tensors);
  for (std::size_t i = 0; i < tensors; ++i) owners[i] = {writer, static_cast<std::uint32_t>(i)};
  return OwnerMap(std::move(owners));
}

OwnerMap OwnerMap::with_written(const VersionId& writer, std::span<const std::uint32_t> changed) const {
  std::vector<SegmentName> owners = owners_;
  for (const std::uint32_t tensor : changed) {
    FRESHET_CHECK(tensor < owners.size());
    owners[tensor] = {writer, tensor};
  }
  return OwnerMap(std::move(owners));
}

std::vector<std::uint32_t> OwnerMap::changed_since(const OwnerMap& base) const {
  FRESHET_CHECK(base.size() == 0 || base.size() == size());
  std::vector<std::uint32_t> changed;
  for (std::size_t i = 0; i < size(); ++i) {
    if (base.size() == 0 || base[i] != owners_[i]) changed.push_back(static_cast<std::uint32_t>(i));
  }
  return changed;
}

std::vector<std::uint32_t> OwnerMap::owned_by(const VersionId& writer) const {
  std::vector<std::uint32_t> owned;
  for (std::size_t i = 0; i < size(); ++i) {
    if (owners_[i].writer == writer) owned.push_back(static_cast<std::uint32_t>(i));
  }
  return owned;
}

std::vector<VersionId> OwnerMap::writers() const {
  std::vector<VersionId> writers;
  std::unordered_set<VersionId> seen;
  for (const SegmentName& owner : owners_) {
    const bool same_as_before = !writers.empty() && writers.back() == owner.writer;
    if (!same_as_before && seen.insert(owner.writer).second) writers.push_back(owner.writer);
  }
  return writers;
}

}  // namespace freshet
