// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The spaces. Each turns genes into a network of kinds of its own palette.

#include <cstdint>
#include <memory>
#include <string_view>

#include "examples/nas_spaces/genes.h"
#include "examples/nas_spaces/network.h"
#include "examples/nas_spaces/palette.h"

namespace freshet::nas {

/// Immutable once made; any thread.
class Space {
 public:
  virtual ~Space() = default;
  virtual std::string_view name() const = 0;
  virtual Choices choices() const = 0;
  virtual const Palette& palette() const = 0;
  /// Makes `network` anew. REQUIRES: one gene per decision, each below its number of choices.
  virtual void build(const Genes& genes, Network& network) const = 0;
};

/// Dense layers with skip connections, as DeepHyper's DenseSkipCo space (EvoStore, section 5.3): a row of nodes, each
/// of which is nothing or a Dense layer of one of six widths with one of five activations (31 choices), and after each
/// node, for each of up to `anchors` outputs before it, whether that output is added. What is added and has another
/// width passes a Dense projection first.
struct DenseSkipOptions {
  std::uint32_t nodes = 10;
  std::uint32_t anchors = 3;
  std::uint32_t inputs = 64;
  std::uint32_t outputs = 2;
  std::uint32_t width_step = 16;  ///< Widths are 1 to 6 times this.
};
std::unique_ptr<Space> make_dense_skip_space(const DenseSkipOptions& options = {});

/// Two inputs of different width, as in the CANDLE problem ATTN: a tower of dense-skip nodes for each, gated by
/// attention (a softmax layer that the tower is multiplied by), joined by Concatenate, then more nodes.
struct TwoInputOptions {
  std::uint32_t tower_nodes = 3;
  std::uint32_t tail_nodes = 4;
  std::uint32_t anchors = 2;
  std::uint32_t left_inputs = 94;
  std::uint32_t right_inputs = 382;
  std::uint32_t outputs = 2;
  std::uint32_t width_step = 16;
};
std::unique_ptr<Space> make_two_input_space(const TwoInputOptions& options = {});

/// NAS-Bench-201 (Dong and Yang, 2020): one of five operations on each of a cell's six edges, in whole networks of
/// three stages of five cells with residual blocks between. All 15,625 come out of advance().
std::unique_ptr<Space> make_nas_bench_201_space();

/// Chains of `length` Dense layers, each of one of `widths` widths with one of four activations.
std::unique_ptr<Space> make_chain_space(std::uint32_t length, std::uint32_t widths = 8);

/// The worst case: `branches` different layers on one input, each there or not, and nothing else. Any set of layers can
/// be a prefix of any other's, so no index can do better than look at most of them.
std::unique_ptr<Space> make_star_space(std::uint32_t branches = 40);

}  // namespace freshet::nas
