// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Curve, band and publish points, as a picture.

#include <string>

#include "bindings/cli/frame/interrupt.h"
#include "bindings/cli/plan/report.h"
#include "core/base/result.h"

namespace freshet::cli {

/// For a terminal: 72 columns of ASCII, a newline at the end of each line.
std::string terminal_plot(const Report& report);

/// Draws with gnuplot into `path`, a name that ends with .svg or .png. unsupported if gnuplot is not installed.
Status write_plot(const Report& report, const std::string& path, const Interrupt& interrupt);

}  // namespace freshet::cli
