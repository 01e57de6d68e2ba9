// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "core/base/format.h"
#include "examples/nas_spaces/dense_node.h"
#include "examples/nas_spaces/spaces.h"

namespace freshet::nas {
namespace {

enum Operation : std::uint8_t { none = 0, skip = 1, conv_1x1 = 2, conv_3x3 = 3, average_pool_3x3 = 4 };
constexpr std::uint8_t kOperations = 5;
constexpr std::size_t kEdges = 6;
constexpr std::uint32_t kStages = 3;
constexpr std::uint32_t kCellsPerStage = 5;
constexpr std::uint64_t kClasses = 10;

std::uint64_t channels(std::uint32_t stage) { return std::uint64_t{16} << stage; }

LayerKind convolution(std::uint64_t from, std::uint64_t to, std::uint64_t size, std::uint64_t stride) {
  return {.class_name = "Conv2D",
          .config = format("{{\"filters\":{},\"kernel_size\":[{},{}],\"padding\":\"same\",\"strides\":[{},{}]}}", to,
                           size, size, stride, stride),
          .tensors = {{.name = "kernel", .shape = {size, size, from, to}}}};
}

LayerKind normalization(std::uint64_t width) {
  const auto tensor = [width](const char* name) { return KindTensor{.name = name, .shape = {width}}; };
  return {.class_name = "BatchNormalization",
          .tensors = {tensor("gamma"), tensor("beta"), tensor("moving_mean"), tensor("moving_variance")}};
}

LayerKind pooling(std::uint64_t size, std::uint64_t stride) {
  return {.class_name = "AveragePooling2D",
          .config =
              format("{{\"padding\":\"same\",\"pool_size\":[{},{}],\"strides\":[{},{}]}}", size, size, stride, stride)};
}

class NasBench201Space final : public Space {
 public:
  NasBench201Space() {
    choices_.fill(kOperations);
    input_ = palette_.add({.class_name = "Input", .config = "{\"dtype\":\"f32\",\"shape\":[null,32,32,3]}"});
    stem_ = palette_.add(convolution(3, channels(0), 3, 1));
    relu_ = palette_.add(activation_kind("relu"));
    add_ = palette_.add({.class_name = "Add"});
    zeros_ = palette_.add({.class_name = "Zeros"});
    pool_3x3_ = palette_.add(pooling(3, 1));
    pool_2x2_ = palette_.add(pooling(2, 2));
    global_pool_ = palette_.add({.class_name = "GlobalAveragePooling2D"});
    classifier_ = palette_.add(dense_kind(channels(kStages - 1), kClasses, "linear"));
    for (std::uint32_t i = 0; i < kStages; ++i) {
      Stage& stage = stages_[i];
      stage.conv_1x1 = palette_.add(convolution(channels(i), channels(i), 1, 1));
      stage.conv_3x3 = palette_.add(convolution(channels(i), channels(i), 3, 1));
      stage.norm = palette_.add(normalization(channels(i)));
      if (i == 0) continue;
      stage.reduce_3x3 = palette_.add(convolution(channels(i - 1), channels(i), 3, 2));
      stage.reduce_1x1 = palette_.add(convolution(channels(i - 1), channels(i), 1, 1));
    }
  }

  std::string_view name() const override { return "nas_bench_201"; }
  Choices choices() const override { return choices_; }
  const Palette& palette() const override { return palette_; }

  void build(const Genes& genes, Network& network) const override {
    network.clear();
    const std::uint32_t input = network.add(input_, {});
    std::uint32_t last = network.add(stages_[0].norm, {network.add(stem_, {input})});
    for (std::uint32_t i = 0; i < kStages; ++i) {
      if (i > 0) last = residual(network, stages_[i], last);
      for (std::uint32_t cells = 0; cells < kCellsPerStage; ++cells) last = cell(network, stages_[i], genes, last);
    }
    last = network.add(relu_, {network.add(stages_[kStages - 1].norm, {last})});
    network.add(classifier_, {network.add(global_pool_, {last})});
  }

 private:
  struct Stage {
    std::uint32_t conv_1x1 = 0, conv_3x3 = 0, norm = 0, reduce_3x3 = 0, reduce_1x1 = 0;
  };

  std::uint32_t unit(Network& network, std::uint32_t convolution_kind, std::uint32_t norm, std::uint32_t from) const {
    const std::uint32_t active = network.add(relu_, {from});
    return network.add(norm, {network.add(convolution_kind, {active})});
  }

  /// Halves the picture and doubles the channels, on the way between two stages.
  std::uint32_t residual(Network& network, const Stage& stage, std::uint32_t from) const {
    const std::uint32_t first = unit(network, stage.reduce_3x3, stage.norm, from);
    const std::uint32_t second = unit(network, stage.conv_3x3, stage.norm, first);
    const std::uint32_t shortcut = network.add(stage.reduce_1x1, {network.add(pool_2x2_, {from})});
    return network.add(add_, {second, shortcut});
  }

  /// Four nodes; node j sums what the edges from all earlier nodes bring. The genes are in the order 0-1, 0-2, 1-2,
  /// 0-3, 1-3, 2-3.
  std::uint32_t cell(Network& network, const Stage& stage, const Genes& genes, std::uint32_t from) const {
    std::array<std::uint32_t, 4> nodes = {from};
    std::size_t edge = 0;
    std::vector<std::uint32_t> brought;
    for (std::size_t to = 1; to < nodes.size(); ++to) {
      brought.clear();
      for (std::size_t source = 0; source < to; ++source) {
        const std::uint8_t operation = genes[edge++];
        if (operation != none) brought.push_back(operate(network, stage, operation, nodes[source]));
      }
      if (brought.empty()) brought.push_back(network.add(zeros_, {nodes[to - 1]}));
      nodes[to] = brought.size() == 1 ? brought[0] : network.add(add_, brought);
    }
    return nodes.back();
  }

  std::uint32_t operate(Network& network, const Stage& stage, std::uint8_t operation, std::uint32_t from) const {
    switch (operation) {
      case conv_1x1: return unit(network, stage.conv_1x1, stage.norm, from);
      case conv_3x3: return unit(network, stage.conv_3x3, stage.norm, from);
      case average_pool_3x3: return network.add(pool_3x3_, {from});
      default: return from;
    }
  }

  Palette palette_;
  std::array<std::uint8_t, kEdges> choices_;
  std::array<Stage, kStages> stages_;
  std::uint32_t input_, stem_, relu_, add_, zeros_, pool_3x3_, pool_2x2_, global_pool_, classifier_;
};

}  // namespace

std::unique_ptr<Space> make_nas_bench_201_space() { return std::make_unique<NasBench201Space>(); }

}  // namespace freshet::nas
