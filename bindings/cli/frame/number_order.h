// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The order in which people count files.

#include <string>

namespace freshet::cli {

/// Numbers within names compare as numbers: step9 comes before step10.
bool comes_before_by_number(const std::string& a, const std::string& b);

}  // namespace freshet::cli
