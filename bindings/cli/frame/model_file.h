// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tensors of a file beside an architecture.

#include <vector>

#include "core/model/graph.h"
#include "core/model/tensor.h"

namespace freshet::cli {

/// The views in the architecture's order, when both have exactly the same tensors; empty otherwise.
std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors);

}  // namespace freshet::cli
