// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether what live versions inherit from other providers is known there. A version's home has its record, which says
/// what of it rests elsewhere; each provider elsewhere has a record of who names what there (repo/FORMAT.md, `x/`).
/// Where such a record was lost, retiring the writer would erase bytes that a version still needs: nobody but who
/// compares all providers can see that. Private to this room.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "repo/cluster/impl.h"

namespace freshet::cluster {

/// The needs of one version from one provider other than its home.
struct Need {
  struct Tensor {
    std::string name;
    SegmentName segment;
    Digest digest;
    std::uint64_t bytes = 0;
  };
  VersionName version;
  std::size_t home = 0;  ///< Index in the view, as `provider` is.
  std::size_t provider = 0;
  ExternalReferrer referrer;    ///< All that the version names there.
  std::vector<Tensor> unknown;  ///< Of these, what the provider does not know to be named; ascending by segment.
};

/// References at a provider for a put or a version that is not there.
struct StrayReference {
  std::size_t provider = 0;
  VersionId version;
  std::size_t segments = 0;
};

/// A version whose record its home cannot read: what it needs elsewhere is known to nobody.
struct UnreadVersion {
  VersionName version;
  std::size_t home = 0;
  bool damaged = false;  ///< Waiting does not help.
  std::string why;
};

struct ReferenceFindings {
  std::vector<Need> needs;             ///< Those with something unknown; all of them, if they were asked for.
  std::vector<StrayReference> strays;  ///< Only when all providers answered. Puts that are on their way are among them.
  std::vector<std::string> notes;      ///< What could not be compared, and why.
  // Nothing is known to be lost only where all of it was compared. Why it was not:
  std::map<std::size_t, std::string> unread_homes;      ///< Homes that did not answer.
  std::vector<UnreadVersion> unread_versions;           ///< Of homes that did.
  std::map<std::size_t, std::string> unread_providers;  ///< Providers whose knowledge could not be compared.
};

enum class ListNeeds : std::uint8_t { unknown, all };

/// Asks every home for its versions and every provider for what it knows. Puts and retirements may go on meanwhile:
/// what is found unknown was so while its version was there. Providers that are away are noted; other errors end it.
/// `only`: what that version needs, and no strays.
Result<ReferenceFindings> check_references(const ClusterRepository::Impl& impl, const ClusterView& now, ListNeeds list,
                                           const std::optional<VersionName>& only);

struct RestoredReferences {
  std::vector<Need> told;
  /// Providers that do not know all that is needed of them, though they may have it, and why: gc() there would erase
  /// it.
  std::map<std::size_t, std::string> failed;
};

/// Tells the providers again what is needed of them; what could not be told is noted.
RestoredReferences restore_references(const ClusterView& now, std::vector<Need> needs, std::vector<std::string>& notes);

}  // namespace freshet::cluster
