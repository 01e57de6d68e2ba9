// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/stream/stray_file.h"

#include <string_view>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::cli {
namespace {

/// "2 missing (first: a.w)", one part of a difference.
void add_part(std::string& text, std::size_t count, const std::string& first, std::string_view what) {
  if (count == 0) return;
  text += format("{}{} {} (first: {})", text.empty() ? "" : ", ", count, what, first);
}

}  // namespace

std::string difference_from(const Architecture& architecture, const std::vector<TensorView>& tensors) {
  struct Count {
    std::size_t tensors = 0;
    std::string first;
    void add(std::string name) {
      if (tensors++ == 0) first = std::move(name);
    }
  };
  Count fresh;
  Count missing;
  Count changed;
  std::vector<bool> found(architecture.tensors().size());
  for (const TensorView& view : tensors) {
    const auto index = architecture.tensor_named(view.spec.name);
    if (!index) {
      fresh.add(shown(view.spec.name));
      continue;
    }
    found[*index] = true;
    const TensorSpec& had = architecture.tensors()[*index];
    if (had == view.spec) continue;
    changed.add(format("{} is {}, was {}", shown(view.spec.name), describe(view.spec.dtype, view.spec.shape),
                       describe(had.dtype, had.shape)));
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i]) missing.add(shown(architecture.tensors()[i].name));
  }
  std::string text;
  add_part(text, missing.tensors, missing.first, "missing");
  add_part(text, fresh.tensors, fresh.first, "new");
  add_part(text, changed.tensors, changed.first, "of another form");
  return text;
}

}  // namespace freshet::cli
