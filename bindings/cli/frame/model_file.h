// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A model's file, as the commands read it.

#include <string>
#include <vector>

#include "bindings/cli/frame/output.h"
#include "core/model/graph.h"
#include "core/model/tensor.h"
#include "core/safetensors/model_file.h"

namespace freshet::cli {

/// The views in the architecture's order, when both have exactly the same tensors; empty otherwise.
std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors);

/// Logs which of the file's metadata is not taken.
void log_left_out(const Output& out, const std::string& path, const ModelFile& file);

}  // namespace freshet::cli
