// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which versions a repository has: every version's row in memory, by name and by identity, and how much the segments
/// come to. Loaded from the backend's records; the segments, of which there are many more, when somebody needs them.
/// Private to this room.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/model/ids.h"
#include "repo/backend/backend.h"
#include "repo/local/catalog/version_forest.h"
#include "repo/records/records.h"

namespace freshet {

/// One thread at a time; the rows are immutable and may be kept.
class Catalog {
 public:
  struct Entry {
    std::shared_ptr<const VersionRow> row;  ///< Null when the stored record is damaged.
  };
  using Versions = std::map<VersionNumber, Entry>;

  /// Reads all rows, and no segments. Numbers that are given, which only puts ask for, are read in an owner's. A
  /// damaged row keeps its place under its name; it hides no other one. unread() has the records that the medium itself
  /// lost.
  static Result<Catalog> load(const Backend& backend);

  /// The sums over all segments.
  struct Segments {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
    std::unordered_map<SegmentName, SegmentName> bases;  ///< By the segment that is a delta onto it.
    std::string unread;                                  ///< As Catalog::unread().
  };
  static Result<Segments> read_segments(const Backend& backend);
  void set_segments(Segments segments);
  /// Whether set_segments() was called. Before that, segments(), segment_bytes() and base_of() must not be.
  bool has_segments() const { return has_segments_; }

  void add(const VersionName& name, VersionRow row);
  void add_segment(std::uint64_t bytes);
  void drop_segment(std::uint64_t bytes);
  /// Puts the tombstone in the version's place. REQUIRES: it is there, and not retired.
  void retire(const VersionName& name, VersionRow tombstone);
  /// The row is another one from now on. REQUIRES: it is there, and neither is retired.
  void replace(const VersionName& name, VersionRow row);
  /// The segment is stored as a delta onto `base`, or as it is. One that is erased may keep its base.
  void set_base(const SegmentName& segment, const std::optional<SegmentName>& base);
  /// The base of its delta. A version that needs a segment needs its base too.
  std::optional<SegmentName> base_of(const SegmentName& segment) const;

  /// The named version, or the newest for number 0; not one that was retired. not_found says so, or what is there
  /// instead; corrupt for a damaged row.
  struct Found {
    VersionName name;
    std::shared_ptr<const VersionRow> row;
  };
  Result<Found> find(const VersionName& name) const;
  /// The same, and a retired one too, if it is named by its number or all of the model's are.
  Result<Found> find_or_tombstone(const VersionName& name) const;
  /// Retired or not.
  std::optional<VersionName> find(const VersionId& id) const;
  /// The version's row, retired or not; or null.
  std::shared_ptr<const VersionRow> row_of(const VersionId& id) const;
  bool has_name(const VersionName& name) const;

  /// The lineage: ancestors and descendants. Retired versions stay in it. Locked as the catalog is. Each load() has a
  /// forest of its own. So the holder of an older forest still finds the nodes that it knows. A reader's first question
  /// about the lineage makes the forest: most commands never ask.
  std::shared_ptr<const VersionForest> forest() const {
    (void)grown_forest();
    return forest_;
  }
  /// The version's place in it, also of one that was retired. Errors as find().
  Result<VersionForest::Node> node_of(const VersionName& name) const;

  /// The greatest number ever given in the model; 0 for none. In an owner's catalog.
  VersionNumber high_water(const std::string& model) const;
  /// Of every model that has one.
  std::map<std::string, VersionNumber> high_waters() const;

  const std::map<std::string, Versions>& models() const { return models_; }
  /// The number of the newest version that was not retired, if there is one.
  static std::optional<VersionNumber> newest(const Versions& versions);
  std::uint64_t live_models() const;
  std::uint64_t versions() const { return versions_; }  ///< Without retired ones.
  std::uint64_t retired() const { return retired_; }
  std::uint64_t greatest_commit() const { return greatest_commit_; }  ///< Of all rows; 0 for none.
  std::uint64_t segments() const { return segments_.count; }
  std::uint64_t segment_bytes() const { return segments_.bytes; }
  std::size_t bases() const { return segments_.bases.size(); }
  /// Why not all records could be read; empty when they could. Versions, numbers and segments may be missing then.
  const std::string& unread() const { return unread_; }

 private:
  VersionForest& grown_forest() const;
  static Status unless_damaged(Status read, std::string& unread);

  std::map<std::string, Versions> models_;
  std::map<std::string, VersionNumber> high_water_;  ///< As it is recorded; a version that is there may be greater.
  mutable std::shared_ptr<VersionForest> forest_;    ///< Null until it is asked for.
  std::uint64_t versions_ = 0;
  std::uint64_t retired_ = 0;
  std::uint64_t greatest_commit_ = 0;
  Segments segments_;
  bool has_segments_ = false;
  std::string unread_;
};

/// Erases the blobs that a crash, or a put that failed, left: no segment record names them, and they are not `in_use`.
/// The bytes of retired versions are left for gc(), which says what it erases.
Status remove_leftover_blobs(Backend& backend, const Catalog& catalog,
                             const std::function<bool(std::string_view key)>& in_use);

}  // namespace freshet
