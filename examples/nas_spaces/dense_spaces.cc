// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_spaces/dense_node.h"
#include "examples/nas_spaces/spaces.h"

namespace freshet::nas {
namespace {

class DenseSkipSpace final : public Space {
 public:
  explicit DenseSkipSpace(const DenseSkipOptions& options)
      : input_(palette_.add(input_kind(options.inputs, 0))),
        kinds_(palette_, options.width_step, {options.inputs, options.outputs}),
        row_(kinds_, options.nodes, options.anchors) {
    row_.append_choices(choices_);
  }

  std::string_view name() const override { return "dense_skip"; }
  Choices choices() const override { return choices_; }
  const Palette& palette() const override { return palette_; }

  void build(const Genes& genes, Network& network) const override {
    network.clear();
    std::span<const std::uint8_t> rest = genes;
    const Signal source = {.call = network.add(input_, {}), .width = kinds_.other_width(0)};
    const Signal last = row_.build(network, source, rest);
    network.add(kinds_.projection(last.width, kinds_.other_width(1)), {last.call});
  }

 private:
  Palette palette_;
  const std::uint32_t input_;
  const DenseKinds kinds_;
  const DenseRow row_;
  std::vector<std::uint8_t> choices_;
};

class TwoInputSpace final : public Space {
 public:
  explicit TwoInputSpace(const TwoInputOptions& options)
      : left_(palette_.add(input_kind(options.left_inputs, 0))),
        right_(palette_.add(input_kind(options.right_inputs, 1))),
        multiply_(palette_.add({.class_name = "Multiply"})),
        softmax_(palette_.add(activation_kind("softmax"))),
        concatenate_(palette_.add({.class_name = "Concatenate", .config = "{\"axis\":-1}"})),
        kinds_(palette_, options.width_step, other_widths(options)),
        tower_(kinds_, options.tower_nodes, options.anchors),
        tail_(kinds_, options.tail_nodes, options.anchors) {
    tower_.append_choices(choices_);
    tower_.append_choices(choices_);
    tail_.append_choices(choices_);
  }

  std::string_view name() const override { return "two_input"; }
  Choices choices() const override { return choices_; }
  const Palette& palette() const override { return palette_; }

  void build(const Genes& genes, Network& network) const override {
    network.clear();
    std::span<const std::uint8_t> rest = genes;
    const std::uint32_t left = network.add(left_, {});
    const std::uint32_t right = network.add(right_, {});
    const Signal first = tower(network, {.call = left, .width = kinds_.other_width(kLeft)}, rest);
    const Signal second = tower(network, {.call = right, .width = kinds_.other_width(kRight)}, rest);
    const Signal joined = {.call = network.add(concatenate_, {first.call, second.call}),
                           .width = kinds_.other_width(kJoined + first.width + second.width)};
    const Signal last = tail_.build(network, joined, rest);
    network.add(kinds_.projection(last.width, kinds_.other_width(kOutputs)), {last.call});
  }

 private:
  /// A tower ends in one of the six widths, so what is joined has one of eleven: 2 to 12 steps.
  static constexpr std::size_t kLeft = 0, kRight = 1, kOutputs = 2, kJoined = 3;

  static std::vector<std::uint64_t> other_widths(const TwoInputOptions& options) {
    std::vector<std::uint64_t> widths = {options.left_inputs, options.right_inputs, options.outputs};
    for (std::uint64_t steps = 2; steps <= 2 * DenseKinds::kWidths; ++steps) {
      widths.push_back(steps * options.width_step);
    }
    return widths;
  }

  /// Gates the row's output with a softmax of itself. A tower all of whose nodes are nothing is projected first.
  Signal tower(Network& network, Signal source, std::span<const std::uint8_t>& genes) const {
    Signal out = tower_.build(network, source, genes);
    if (out.width >= DenseKinds::kWidths) out = {.call = network.add(kinds_.projection(out.width, 0), {out.call})};
    const std::uint32_t scores = network.add(kinds_.projection(out.width, out.width), {out.call});
    const std::uint32_t gate = network.add(softmax_, {scores});
    return {.call = network.add(multiply_, {out.call, gate}), .width = out.width};
  }

  Palette palette_;
  const std::uint32_t left_;
  const std::uint32_t right_;
  const std::uint32_t multiply_;
  const std::uint32_t softmax_;
  const std::uint32_t concatenate_;
  const DenseKinds kinds_;
  const DenseRow tower_;
  const DenseRow tail_;
  std::vector<std::uint8_t> choices_;
};

}  // namespace

std::unique_ptr<Space> make_dense_skip_space(const DenseSkipOptions& options) {
  return std::make_unique<DenseSkipSpace>(options);
}

std::unique_ptr<Space> make_two_input_space(const TwoInputOptions& options) {
  return std::make_unique<TwoInputSpace>(options);
}

}  // namespace freshet::nas
