// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells a file that lies in a watched folder by chance from a version of the model.

#include <string>
#include <vector>

#include "core/model/graph.h"
#include "core/model/tensor.h"

namespace freshet::cli {

/// How the tensors differ from the architecture's, for people: how many are missing, new, or of another form, with the
/// first of each. Empty when they have the same names and forms.
std::string difference_from(const Architecture& architecture, const std::vector<TensorView>& tensors);

}  // namespace freshet::cli
