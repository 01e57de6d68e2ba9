// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Versions in a folder that `export` wrote: MODEL@V.version.json, the sheet, beside MODEL@V.safetensors and
/// MODEL@V.graph.json. Sheets name no files; those of a version are found by the sheet's own name, so no sheet leads
/// out of its folder.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cli/frame/program.h"
#include "repo/files/import.h"

namespace freshet::cli {

inline constexpr std::string_view kWeightsEnd = ".safetensors";
inline constexpr std::string_view kGraphEnd = ".graph.json";
inline constexpr std::string_view kSheetEnd = ".version.json";

/// A version to be restored, before its turn comes.
struct SheetSource {
  std::string stem;  ///< The path without any of the ends.
  RestorePlace place;
  bool has_weights = true;
  std::uint64_t bytes = 0;  ///< Of its weights.
};

/// Errors name the sheet's path.
Result<SheetSource> read_sheet_source(const std::string& stem);

struct RestoreOptions {
  bool deltas = false;
  std::uint64_t total_bytes = 0;  ///< Of all that the command imports.
};
/// Restores them in an order in which numbers and lines stay, a line of output each, then the aliases that they had.
/// `done` counts the bytes.
Result<ExitCode> restore_all(Program& program, Repository& repository, const std::vector<SheetSource>& sources,
                             const RestoreOptions& options, std::uint64_t& done);

/// The sheet of a version that is stored, written beside its other files.
Status write_sheet(const Repository& repository, const VersionRecord& record, bool has_graph, const std::string& stem);

}  // namespace freshet::cli
