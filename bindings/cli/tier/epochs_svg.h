// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Draws where a set's opens and bytes came from, epoch by epoch. A pure function of its arguments.

#include <span>
#include <string>

#include "repo/tier/board.h"

namespace freshet::cli {

/// An SVG image: a bar for each epoch, from the tiers below and from the source above; opens on the left, bytes on the
/// right. Rows without opens at the end are left out; of more than a hundred each bar is the sum of several.
std::string epochs_svg(std::span<const tier::EpochRow> rows, const std::string& title);

}  // namespace freshet::cli
