// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A version's sheet has the facts of a version besides its graph and its bytes. It is a line of JSON, in a file beside
/// them (`freshet repo export`). With the sheet, a version is restored (repo/files/import.h) with the same identity,
/// owner map, ancestor, quality, tags and time, and inherits the same tensors again.
///
/// Sheets come from outside. parse_version_sheet() checks every count, name and number. Digests prove that graph and
/// bytes belong to the sheet.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/manifest.h"

namespace freshet {

struct VersionRecord;

struct VersionSheet {
  /// Without an architecture. Owners and digests only if the version has weights.
  Manifest manifest;
  Digest architecture;
  std::vector<std::string> tensors;  ///< Names, in the architecture's order. Empty for a version without weights.
  std::optional<double> quality;
  bool has_weights = true;
  bool has_graph = true;              ///< True: a graph file lies beside. False: guess the graph from the tensors.
  std::vector<std::string> aliases;   ///< Aliases that meant the version at the export.
  std::int64_t exported_unix_ns = 0;  ///< If two sheets claim an alias, the later one wins.
};

VersionSheet sheet_of(const VersionRecord& record, std::vector<std::string> aliases, std::int64_t exported_unix_ns);

inline constexpr std::size_t kSheetBytesMax = std::size_t{256} << 20;

/// One line, without its end. REQUIRES: the manifest passed check().
std::string to_json(const VersionSheet& sheet);
/// The inverse. The message of invalid_argument names the fault; unsupported for a sheet of another format.
Result<VersionSheet> parse_version_sheet(std::string_view json);

}  // namespace freshet
