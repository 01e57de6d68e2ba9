// SPDX-License-Identifier: Apache-2.0
#pragma once

/// MONARCH (CCGrid'22), where somebody has built its library: its config, and the words before a program that it is
/// loaded into.

#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::benchmarks {

/// Two levels: `tier` (made anew) before `source`. `folder` takes the config and what MONARCH writes beside.
Result<std::vector<std::string>> monarch_words(const std::string& library, const std::string& folder,
                                               const std::string& tier, const std::string& source);

}  // namespace freshet::benchmarks
