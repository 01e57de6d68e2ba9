// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/model_file.h"

namespace freshet::cli {

std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors) {
  const auto specs = architecture.tensors();
  if (specs.size() != tensors.size()) return {};
  std::vector<TensorView> ordered(specs.size());
  for (const TensorView& view : tensors) {
    const auto index = architecture.tensor_named(view.spec.name);
    if (!index || specs[*index] != view.spec) return {};
    ordered[*index] = view;
  }
  return ordered;
}

}  // namespace freshet::cli
