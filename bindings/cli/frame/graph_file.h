// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Small files of text, as commands of `freshet repo` read them.

#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/model/graph.h"

namespace freshet::cli {

/// All of a regular file. Errors name it: not_found; invalid_argument for a path that is not a file, or has more bytes.
Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max);

/// Errors name the file.
Result<std::shared_ptr<const Architecture>> read_graph(const std::string& path);

}  // namespace freshet::cli
