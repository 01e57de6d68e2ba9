// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Manifests on the disk. The manifests of a lineage share their equal parts: an entry of a group is whole, or says
/// what differs from another entry of its group, so that a version costs what it changed. A group takes at most twice
/// what one whole manifest takes, so reading any of it back is one short scan, however long the lineage is. How they
/// share their equal parts is known here alone, so nobody else reads or writes their records. Private to this room.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/model/manifest.h"
#include "repo/backend/backend.h"
#include "repo/local/catalog/locked_catalog.h"
#include "repo/local/stored/architectures.h"
#include "repo/records/manifest_group.h"
#include "repo/records/records.h"

namespace freshet {

/// Any thread reads; store() and erase() are the writer's.
class StoredManifests {
 public:
  StoredManifests(const Backend& backend, const LockedCatalog& known, const StoredArchitectures& architectures)
      : backend_(backend), known_(known), architectures_(architectures) {}

  /// Adds to the batch what stores the manifest, and notes in `row` where it is found and how it is proved.
  Status store(Backend::Batch& batch, const Manifest& manifest, VersionRow& row) const;
  /// Adds to the batch what takes the version's manifest away; those that share parts with it stay whole. Sees what the
  /// batch has already, so several can go in one.
  Status erase(Backend::Batch& batch, const VersionRow& row) const;
  /// Reads and proves. corrupt names the version.
  Result<Manifest> get(const VersionName& name, const VersionRow& row) const;

  using Each = std::function<Status(const VersionName& name, const VersionRow& row, const Result<Manifest>& manifest)>;
  /// Calls back for every version that has one (not: tombstones and damaged rows), in the order that reads cheapest.
  /// Ends with the first error that the callback gives. Not under the catalog's lock.
  Status for_each(const Each& each) const;
  /// As for_each, without their architectures, which need not be read then.
  Status for_each_owner_map(const Each& each) const;

 private:
  /// Checks that the manifest is the one that the row names. It has no architecture yet.
  using Prove =
      std::function<Result<Manifest>(const VersionName& name, const VersionRow& row, const UnprovedManifest&)>;
  Status for_each_decoded(const Prove& prove, const Each& each) const;
  static Result<Manifest> proved_alone(const VersionName& name, const VersionRow& row, const UnprovedManifest& decoded);
  Result<Manifest> proved(const VersionName& name, const VersionRow& row, const UnprovedManifest& decoded) const;
  std::shared_ptr<const VersionRow> base_row_for(const Manifest& manifest) const;
  /// The entry's encoded form on another base, or whole.
  Result<std::string> rebased(ManifestGroup& group, std::uint32_t entry, std::optional<std::uint32_t> base) const;
  Result<Manifest> get_from_group(const VersionName& name, const VersionRow& row) const;

  const Backend& backend_;
  const LockedCatalog& known_;
  const StoredArchitectures& architectures_;
};

}  // namespace freshet
