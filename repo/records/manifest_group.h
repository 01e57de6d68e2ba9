// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Manifests that share their equal parts: the entries of one group, of which some are whole and the others say what
/// differs from another one. Read with one scan. Private to this room.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/records/manifest_entry.h"
#include "repo/records/records.h"

namespace freshet {

/// The entries of a group on the disk, or as they will be after a batch. One thread at a time; decoded entries live as
/// long as it.
class ManifestGroup {
 public:
  /// `batch`: changes that are to be seen already; may be null. A lost entry hides no other entry.
  static Result<ManifestGroup> load(const Backend& backend, std::uint64_t number, const Backend::Batch* batch);

  std::uint64_t number() const { return number_; }
  /// False when there may be entries that could not be read.
  bool is_whole() const { return is_whole_; }
  std::uint64_t bytes() const;
  std::uint32_t next_entry() const { return entries_.empty() ? 0 : entries_.rbegin()->first + 1; }

  /// Not proved. corrupt when it, or one that it is based on, is missing or damaged.
  Result<const UnprovedManifest*> decode(std::uint32_t entry);

  /// The entry that this entry is based on, if any.
  Result<std::optional<std::uint32_t>> base_of(std::uint32_t entry) const;
  /// The entries that are based on this one, and how long each is. Damaged ones are none's.
  std::map<std::uint32_t, std::size_t> based_on(std::uint32_t entry) const;

 private:
  explicit ManifestGroup(std::uint64_t number) : number_(number) {}

  std::uint64_t number_;
  bool is_whole_ = true;
  std::map<std::uint32_t, std::string> entries_;
  std::unordered_map<std::uint32_t, std::unique_ptr<const UnprovedManifest>> decoded_;
};

}  // namespace freshet
