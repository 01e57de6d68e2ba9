// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/model_file.h"

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/model/own_tags.h"

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

void log_left_out(const Output& out, const std::string& path, const ModelFile& file) {
  for (const std::string& key : file.left_out()) {
    out.log(format("{}: its {} is no tag of the version: names that begin with {} are Freshet's own", path, shown(key),
                   kOwnTagsBegin));
  }
}

}  // namespace freshet::cli
