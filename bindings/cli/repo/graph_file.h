#pragma once

/// Graph files, as commands of `freshet repo` read them.

#include <memory>
#include <string>

#include "core/graph.h"
#include "core/result.h"

namespace freshet::cli {

/// Errors name the file.
Result<std::shared_ptr<const Architecture>> read_graph(const std::string& path);

}  // namespace freshet::cli
