// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Why a match is as long as it is: which of the query's layers a version has, and where they first part.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/graph.h"

namespace freshet {

struct MatchStep {
  std::uint32_t layer = 0;              ///< Of the query.
  std::optional<std::uint32_t> stored;  ///< The version's layer that it matches.
  bool counted = false;                 ///< It matches, and is no input placeholder.
  std::string why_not;                  ///< Empty when it matches. One line.
};

/// One step for each layer of `query`, in its order. A layer whose inputs all match and which does not match itself is
/// told from the layer that stands at its place in `stored`; any other names the input that does not match.
std::vector<MatchStep> explain_match(const Architecture& query, const Architecture& stored);

}  // namespace freshet
