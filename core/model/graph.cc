// SPDX-License-Identifier: Apache-2.0
#include "core/model/graph.h"

#include <algorithm>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/model/graph_parts.h"
#include "core/model/slot_id.h"

namespace freshet {
namespace {

/// What a safetensors file calls its metadata: a tensor of this name could come in, and never out.
constexpr std::string_view kMetadataName = "__metadata__";

struct SplitName {
  std::string_view layer;
  std::string_view tensor;
};

/// "encoder.0.weight" is tensor "weight" of layer "encoder.0". A name with nothing on one side of its last dot, or
/// without a dot, stands for itself on both. Layers and their tensors need names, so the empty name gets two that no
/// other name leads to.
SplitName split_at_last_dot(std::string_view name) {
  if (name.empty()) return {".", ".."};
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == name.size()) return {name, name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

}  // namespace

std::shared_ptr<const Architecture> ArchitectureBuilder::assemble(Architecture::Parts parts,
                                                                  std::vector<std::byte> encoded) {
  std::shared_ptr<Architecture> architecture(new Architecture);
  architecture->parts_ = std::move(parts);
  const Architecture::Parts& placed = architecture->parts_;
  architecture->slots_ = compute_slots(placed.layers, placed.tensors);
  for (std::size_t i = 0; i < placed.tensors.size(); ++i) {
    architecture->tensor_by_name_.emplace(placed.tensors[i].name, static_cast<std::uint32_t>(i));
    architecture->bytes_ += placed.tensors[i].bytes();
  }
  architecture->encoded_ = std::move(encoded);
  architecture->digest_ = digest_of(architecture->encoded_);
  return architecture;
}

Result<std::shared_ptr<const Architecture>> Architecture::build(Parts parts) {
  Status status = check_and_normalize(parts);
  // Of new graphs only: a version that was stored with such a name can still be read.
  const bool has_it = std::ranges::any_of(parts.tensors, [](const auto& spec) { return spec.name == kMetadataName; });
  if (status && has_it) {
    status = refuse(format("a tensor cannot be named {}: no safetensors file can hold it", kMetadataName));
  }
  if (!status) return fail(std::move(status).error().with_context(format("graph {}", shown(parts.name))));
  std::vector<std::byte> encoded = encode_architecture(parts);
  return ArchitectureBuilder::assemble(std::move(parts), std::move(encoded));
}

Result<std::shared_ptr<const Architecture>> Architecture::guess_chain(std::vector<TensorSpec> tensors) {
  Parts parts{.tensors = std::move(tensors), .guessed = true};
  std::unordered_map<std::string_view, std::uint32_t> layer_of;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    const SplitName split = split_at_last_dot(parts.tensors[i].name);
    const auto next = static_cast<std::uint32_t>(parts.layers.size());
    const auto [entry, is_new] = layer_of.emplace(split.layer, next);
    if (is_new) {
      Layer layer{.name = std::string(split.layer), .class_name = "Guessed"};
      if (next != 0) layer.inputs.push_back({.layer = next - 1});
      parts.layers.push_back(std::move(layer));
    }
    // "w" and "w.w" would both be tensor "w" of layer "w": the second keeps its whole name.
    const bool whole = split.layer == split.tensor && split.layer != parts.tensors[i].name;
    parts.layers[entry->second].tensors.push_back(
        {.name = whole ? parts.tensors[i].name : std::string(split.tensor), .tensor = static_cast<std::uint32_t>(i)});
  }
  if (!parts.layers.empty()) parts.outputs.push_back({.layer = static_cast<std::uint32_t>(parts.layers.size() - 1)});
  return build(std::move(parts));
}

std::optional<std::uint32_t> Architecture::tensor_named(std::string_view name) const {
  const auto found = tensor_by_name_.find(name);
  if (found == tensor_by_name_.end()) return std::nullopt;
  return found->second;
}

}  // namespace freshet
