// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The count of who names what, made of the records when somebody first needs it: who never retires pays nothing for
/// it. Private to this room.

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/local/catalog/locked_catalog.h"
#include "repo/local/stored/manifests.h"
#include "repo/local/stored/references.h"
#include "repo/local/stored/segments.h"
#include "repo/provider_repository.h"

namespace freshet {

/// The writers' turn guards it.
class ReferenceBook {
 public:
  ReferenceBook(const Backend& backend, const LockedCatalog& known, const StoredManifests& manifests,
                const StoredSegments& segments)
      : backend_(backend), known_(known), manifests_(manifests), segments_(segments) {}

  /// Counts, unless that was done.
  Status need();
  /// Nothing before need(), and after forget().
  const std::optional<References>& counts() const { return counts_; }
  std::optional<References>& counts() { return counts_; }
  /// The counts may be wrong: the next need() counts anew.
  void forget() { counts_.reset(); }

  /// The segments and architectures that a retirement lets go of.
  struct Release {
    bool known = false;  ///< False where damage hides what versions name.
    std::vector<SegmentName> segments;
    std::vector<SegmentName> unnamed;  ///< Of those, the ones that nobody else names.
  };
  /// REQUIRES: need() succeeded.
  Result<Release> release_of(const Catalog::Found& version) const;

  /// Calls back for each version of another provider that names segments here. corrupt: a record is damaged.
  Status scan_referrers(const std::function<void(const ExternalReferrer&)>& each) const;

 private:
  Result<References> count() const;
  /// With those that they are deltas onto.
  Result<std::vector<SegmentName>> segments_of(const VersionName& name, const VersionRow& row) const;

  const Backend& backend_;
  const LockedCatalog& known_;
  const StoredManifests& manifests_;
  const StoredSegments& segments_;
  std::optional<References> counts_;
};

/// All of one writer.
std::vector<SegmentName> segments_of_writer(const VersionId& writer, const std::vector<std::uint32_t>& tensors);

}  // namespace freshet
