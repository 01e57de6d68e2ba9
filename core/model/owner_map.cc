// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>

#include "core/base/check.h"
#include "core/model/manifest.h"

namespace freshet {

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
