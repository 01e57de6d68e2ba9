// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A manifest as it lies in a repository: whole, or as what differs from another one, its base. repo/FORMAT.md,
/// "Manifests", describes the form. Pure functions; private to this room.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/manifest.h"

namespace freshet {

/// A manifest whose architecture is known by its digest alone; `manifest.architecture` is null. Nothing about it is
/// proved.
struct UnprovedManifest {
  Manifest manifest;
  Digest architecture;
};

struct EntryBase {
  std::uint32_t entry = 0;  ///< The base's number within the group.
  const Manifest& manifest;
};

/// REQUIRES: check(manifest) passes.
std::string encode_entry(const Manifest& manifest, const EntryBase* base);

/// About as many bytes as encode_entry() without a base gives.
std::uint64_t whole_entry_bytes(const Manifest& manifest);

/// The entry that this one is based on, if any. corrupt when it is damaged.
Result<std::optional<std::uint32_t>> base_of_entry(std::string_view entry);

/// `base` is what the entry's base decodes to; null for a whole one. corrupt when the entry is damaged, or does not fit
/// the base.
Result<UnprovedManifest> decode_entry(std::string_view entry, const Manifest* base);

}  // namespace freshet
