// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The screen of `freshet top`, in 80 columns: names give way to numbers, a path to its end.

#include <string>
#include <vector>

#include "bindings/cli/frame/output.h"

namespace freshet::cli {

/// One publisher and its subscribers. `rates` stands behind the totals.
std::string model_screen(const Json& model, const std::string& rates);

/// A row for each model of sample_all(): its newest version, and how many subscribers it has. Below it the version's
/// file, and each subscriber that serves another version than it should.
std::string models_screen(const std::vector<Json>& models);

}  // namespace freshet::cli
