// SPDX-License-Identifier: Apache-2.0
#include "core/base/format.h"
#include "examples/nas_spaces/dense_node.h"
#include "examples/nas_spaces/spaces.h"

namespace freshet::nas {
namespace {

constexpr std::uint64_t kInputWidth = 64;

class ChainSpace final : public Space {
 public:
  ChainSpace(std::uint32_t length, std::uint32_t widths)
      : name_(format("chain_{}", length)), input_(palette_.add(input_kind(kInputWidth, 0))), widths_(widths) {
    choices_.assign(length, static_cast<std::uint8_t>(widths * kActivations));
    // Row 0 of the table takes the input; row 1 + w what has width w.
    for (std::uint32_t row = 0; row <= widths; ++row) {
      for (std::uint32_t choice = 0; choice < widths * kActivations; ++choice) {
        const std::uint64_t from = row == 0 ? kInputWidth : units(row - 1);
        dense_.push_back(palette_.add(dense_kind(from, units(choice / kActivations), kNames[choice % kActivations])));
      }
    }
  }

  std::string_view name() const override { return name_; }
  Choices choices() const override { return choices_; }
  const Palette& palette() const override { return palette_; }

  void build(const Genes& genes, Network& network) const override {
    network.clear();
    std::uint32_t last = network.add(input_, {});
    std::uint32_t row = 0;
    for (const std::uint8_t gene : genes) {
      last = network.add(dense_[row * widths_ * kActivations + gene], {last});
      row = 1 + gene / kActivations;
    }
  }

 private:
  static constexpr std::uint32_t kActivations = 4;
  static constexpr const char* kNames[kActivations] = {"linear", "relu", "sigmoid", "tanh"};
  static std::uint64_t units(std::uint32_t width) { return 16 * (width + 1); }

  Palette palette_;
  const std::string name_;
  const std::uint32_t input_;
  const std::uint32_t widths_;
  std::vector<std::uint32_t> dense_;
  std::vector<std::uint8_t> choices_;
};

class StarSpace final : public Space {
 public:
  explicit StarSpace(std::uint32_t branches) : input_(palette_.add(input_kind(kInputWidth, 0))), choices_(branches, 2) {
    for (std::uint32_t i = 0; i < branches; ++i)
      branches_.push_back(palette_.add(dense_kind(kInputWidth, 16 + i, "relu")));
  }

  std::string_view name() const override { return "star"; }
  Choices choices() const override { return choices_; }
  const Palette& palette() const override { return palette_; }

  void build(const Genes& genes, Network& network) const override {
    network.clear();
    const std::uint32_t input = network.add(input_, {});
    for (std::size_t i = 0; i < genes.size(); ++i) {
      if (genes[i] != 0) network.add(branches_[i], {input});
    }
  }

 private:
  Palette palette_;
  const std::uint32_t input_;
  std::vector<std::uint32_t> branches_;
  std::vector<std::uint8_t> choices_;
};

}  // namespace

std::unique_ptr<Space> make_chain_space(std::uint32_t length, std::uint32_t widths) {
  return std::make_unique<ChainSpace>(length, widths);
}

std::unique_ptr<Space> make_star_space(std::uint32_t branches) { return std::make_unique<StarSpace>(branches); }

}  // namespace freshet::nas
