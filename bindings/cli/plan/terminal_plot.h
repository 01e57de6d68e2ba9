// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Curve, band and publish points, as a picture for a terminal.

#include <string>

#include "bindings/cli/plan/report.h"

namespace freshet::cli {

/// 72 columns of ASCII, a newline at the end of each line.
std::string terminal_plot(const Report& report);

}  // namespace freshet::cli
