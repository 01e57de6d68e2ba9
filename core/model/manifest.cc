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

}  // namespace freshet
