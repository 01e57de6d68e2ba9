// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version's sheet: what is known of it beside its graph and its bytes, as a line of JSON that lies next to them in a
/// folder (`freshet repo export`). With it a version comes back as it was (repo/import.h): the same identity, owner
/// map, ancestor, quality, tags and time, so that what it inherited is inherited again.
///
/// Sheets come from outside. parse_version_sheet() believes no count, name or number; that the graph and the bytes are
/// those that the sheet speaks of is shown by their digests.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/manifest.h"
#include "core/result.h"

namespace freshet {

struct VersionRecord;

struct VersionSheet {
  /// Without an architecture; owners and digests only of one that has weights.
  Manifest manifest;
  Digest architecture;
  std::vector<std::string> tensors;  ///< Their names, in the architecture's order. Empty for one without weights.
  std::optional<double> quality;
  bool has_weights = true;
  bool has_graph = true;              ///< Beside it; otherwise it is guessed from the tensors again.
  std::vector<std::string> aliases;   ///< That meant it then.
  std::int64_t exported_unix_ns = 0;  ///< Of two sheets that claim an alias, the later one is right.
};

VersionSheet sheet_of(const VersionRecord& record, std::vector<std::string> aliases, std::int64_t exported_unix_ns);

inline constexpr std::size_t kSheetBytesMax = std::size_t{256} << 20;

/// One line, without its end. REQUIRES: the manifest passed check().
std::string to_json(const VersionSheet& sheet);
/// The inverse. invalid_argument says what is wrong; unsupported for a sheet of a newer form.
Result<VersionSheet> parse_version_sheet(std::string_view json);

}  // namespace freshet
