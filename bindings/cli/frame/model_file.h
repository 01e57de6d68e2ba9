// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Model files as the commands read them: one whole safetensors file, in memory of our own.

#include <vector>

#include "core/model/graph.h"
#include "core/model/tensor.h"
#include "core/safetensors/safetensors.h"

namespace freshet::cli {

using ModelFile = SafetensorsFile;

/// The views in the architecture's order, when both have exactly the same tensors; empty otherwise.
std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors);

}  // namespace freshet::cli
