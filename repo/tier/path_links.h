// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The links of a tier from a source's path to its copy, by which a reader under validate = "never" finds the copy
/// without a look at the source. A link may be wrong, of another path with the same hash, or lead nowhere: the reader
/// compares the path in the copy's note before it believes it. So a link that cannot be made costs a look, and nothing
/// else.
///
/// Any thread.

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "repo/tier/copy_name.h"

namespace freshet::tier {

/// `path` is absolute and without links; `aside` is a number that nothing else in progress has.
void link_path(const std::string& tier, const std::string& path, const Identity& identity, std::uint64_t aside);

/// Removes the link of the path, when it leads to that copy.
void unlink_path(const std::string& tier, const std::string& path, const Identity& identity);

/// Removes links that lead nowhere, and makes those that are missing.
Status mend_path_links(const std::string& tier);

}  // namespace freshet::tier
