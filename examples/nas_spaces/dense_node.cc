// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/dense_node.h"

#include "core/base/format.h"

namespace freshet::nas {
namespace {

constexpr const char* kActivationNames[DenseKinds::kActivations] = {"linear", "relu", "sigmoid", "swish", "tanh"};

std::uint8_t taken(std::span<const std::uint8_t>& genes) {
  const std::uint8_t gene = genes.front();
  genes = genes.subspan(1);
  return gene;
}

}  // namespace

LayerKind dense_kind(std::uint64_t inputs, std::uint64_t units, const std::string& activation) {
  return {.class_name = "Dense",
          .config = format("{{\"activation\":\"{}\",\"units\":{}}}", activation, units),
          .tensors = {{.name = "kernel", .shape = {inputs, units}}, {.name = "bias", .shape = {units}}}};
}

LayerKind activation_kind(const std::string& activation) {
  return {.class_name = "Activation", .config = format("{{\"activation\":\"{}\"}}", activation)};
}

LayerKind input_kind(std::uint64_t width, std::uint32_t ordinal) {
  return {
      .class_name = "Input", .config = format("{{\"dtype\":\"f32\",\"shape\":[null,{}]}}", width), .ordinal = ordinal};
}

DenseKinds::DenseKinds(Palette& palette, std::uint64_t width_step, std::vector<std::uint64_t> other_widths) {
  std::vector<std::uint64_t> widths;
  for (std::uint64_t i = 1; i <= kWidths; ++i) widths.push_back(i * width_step);
  widths.insert(widths.end(), other_widths.begin(), other_widths.end());
  widths_ = static_cast<std::uint32_t>(widths.size());
  for (const std::uint64_t from : widths) {
    for (const std::uint64_t to : widths) {
      for (const char* activation : kActivationNames) dense_.push_back(palette.add(dense_kind(from, to, activation)));
    }
  }
  add_ = palette.add({.class_name = "Add"});
  relu_ = palette.add(activation_kind("relu"));
}

void DenseRow::append_choices(std::vector<std::uint8_t>& choices) const {
  for (std::uint32_t node = 0; node < nodes_; ++node) {
    choices.push_back(DenseKinds::kNodeChoices);
    choices.insert(choices.end(), anchors_of(node), 2);
  }
}

Signal DenseRow::build(Network& network, Signal source, std::span<const std::uint8_t>& genes) const {
  std::vector<Signal> outputs = {source};
  std::vector<std::uint32_t> added;
  for (std::uint32_t node = 0; node < nodes_; ++node) {
    Signal cell = outputs.back();
    if (const std::uint32_t gene = taken(genes); gene != 0) {
      const std::uint32_t width = (gene - 1) / DenseKinds::kActivations;
      const std::uint32_t activation = (gene - 1) % DenseKinds::kActivations;
      cell = {.call = network.add(kinds_.dense(cell.width, width, activation), {cell.call}), .width = width};
    }
    added.assign(1, cell.call);
    for (std::uint32_t i = anchors_of(node); i > 0; --i) {
      if (taken(genes) == 0) continue;
      const Signal anchor = outputs[outputs.size() - i];
      added.push_back(anchor.width == cell.width
                          ? anchor.call
                          : network.add(kinds_.projection(anchor.width, cell.width), {anchor.call}));
    }
    if (added.size() > 1) {
      const std::uint32_t sum = network.add(kinds_.add(), added);
      cell.call = network.add(kinds_.relu(), {sum});
    }
    outputs.push_back(cell);
  }
  return outputs.back();
}

}  // namespace freshet::nas
