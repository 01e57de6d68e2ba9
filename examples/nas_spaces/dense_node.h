// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What the dense spaces share: kinds of Dense layers, and nodes with skip connections. Private to this folder.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "examples/nas_spaces/network.h"
#include "examples/nas_spaces/palette.h"

namespace freshet::nas {

/// "Dense" of that many units, with kernel and bias; no activation is "linear".
LayerKind dense_kind(std::uint64_t inputs, std::uint64_t units, const std::string& activation);
LayerKind activation_kind(const std::string& activation);
LayerKind input_kind(std::uint64_t width, std::uint32_t ordinal);

/// Dense layers from any of a few input widths to any of six widths, with any of five activations.
class DenseKinds {
 public:
  static constexpr std::uint32_t kWidths = 6;
  static constexpr std::uint32_t kActivations = 5;
  /// Nothing, or one of the layers.
  static constexpr std::uint8_t kNodeChoices = 1 + kWidths * kActivations;

  /// Other widths than the six come in `other_widths`. Adds what it needs to `palette`.
  DenseKinds(Palette& palette, std::uint64_t width_step, std::vector<std::uint64_t> other_widths);

  /// A width's number: 0 to 5 for the six, then those of `other_widths`.
  std::uint32_t other_width(std::size_t index) const { return kWidths + static_cast<std::uint32_t>(index); }
  std::uint32_t dense(std::uint32_t from_width, std::uint32_t to_width, std::uint32_t activation) const {
    return dense_[(from_width * widths_ + to_width) * kActivations + activation];
  }
  std::uint32_t projection(std::uint32_t from_width, std::uint32_t to_width) const {
    return dense(from_width, to_width, 0);
  }
  std::uint32_t add() const { return add_; }
  std::uint32_t relu() const { return relu_; }

 private:
  std::uint32_t widths_ = 0;
  std::vector<std::uint32_t> dense_;
  std::uint32_t add_ = 0;
  std::uint32_t relu_ = 0;
};

/// An output and its width's number.
struct Signal {
  std::uint32_t call = 0;
  std::uint32_t width = 0;
};

/// Lays a row of nodes behind `source`: first the gene of a node, then one for each anchor that it has.
class DenseRow {
 public:
  DenseRow(const DenseKinds& kinds, std::uint32_t nodes, std::uint32_t anchors)
      : kinds_(kinds), nodes_(nodes), anchors_(anchors) {}

  void append_choices(std::vector<std::uint8_t>& choices) const;
  /// Takes its genes from the front of `genes`.
  Signal build(Network& network, Signal source, std::span<const std::uint8_t>& genes) const;

 private:
  std::uint32_t anchors_of(std::uint32_t node) const { return node + 1 < anchors_ ? node + 1 : anchors_; }

  const DenseKinds& kinds_;
  std::uint32_t nodes_;
  std::uint32_t anchors_;
};

}  // namespace freshet::nas
