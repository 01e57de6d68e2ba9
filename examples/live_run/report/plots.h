// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The report's plots, drawn by gnuplot: loss.svg, latency.svg, bytes.svg, each with the script (data inside) that made
/// it.

#include <string>

#include "core/base/result.h"
#include "examples/live_run/report/tally.h"

namespace freshet::live {

/// unsupported when gnuplot is not installed: the scripts are there, the pictures are not.
Status draw_plots(const Tally& tally, const std::string& folder);

}  // namespace freshet::live
