// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <random>

#include "benchmarks/delta/trace.h"
#include "examples/live_run/model/corpus.h"
#include "examples/live_run/model/optimizer.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kBatch = 32;
constexpr std::uint64_t kTraceSeed = 1;
constexpr std::uint64_t kStepsBefore = 600;
constexpr std::uint64_t kStepsBetween = 10;

/// The example's training step, without its publishing.
class Training {
 public:
  Training(const live::Layout& layout, const live::Corpus& corpus, live::Weights weights)
      : layout_(layout), corpus_(corpus), weights_(std::move(weights)), optimizer_(layout) {}

  void step(std::uint64_t number) {
    std::mt19937_64 random(kTraceSeed * 0x9E3779B97F4A7C15ULL + number);
    std::uniform_int_distribution<std::size_t> position(layout_.orders(), corpus_.training.size() - 1);
    batch_.clear();
    for (std::size_t i = 0; i < kBatch; ++i) batch_.push_back(corpus_.training.data() + position(random));
    live::gather(layout_, weights_, batch_, pass_);
    live::infer(layout_, weights_, pass_);
    live::backward(layout_, weights_, pass_, gradients_);
    optimizer_.step(pass_, gradients_, 0, weights_, touched_);
  }

  std::vector<TensorView> views() const { return weights_.views(layout_); }

 private:
  const live::Layout& layout_;
  const live::Corpus& corpus_;
  live::Weights weights_;
  live::Optimizer optimizer_;
  std::vector<live::Position> batch_;
  live::Pass pass_;
  live::Gradients gradients_;
  std::vector<live::RowPlace> touched_;
};

std::vector<std::byte> cast_to_bf16(const std::vector<std::byte>& f32) {
  std::vector<std::byte> cast(f32.size() / 2);
  for (std::size_t i = 0; i < cast.size() / 2; ++i) {
    float value;
    std::memcpy(&value, f32.data() + 4 * i, 4);
    const std::uint16_t bits = bf16_of(value);
    std::memcpy(cast.data() + 2 * i, &bits, 2);
  }
  return cast;
}

void add_if_changed(std::vector<TensorPair>& pairs, TensorPair pair) {
  if (pair.base != pair.target) pairs.push_back(std::move(pair));
}

}  // namespace

Result<RecordedTrace> record_trace() {
  FRESHET_ASSIGN(const auto files, live::default_text_files());
  FRESHET_ASSIGN(const live::Corpus corpus, live::read_corpus(files));
  FRESHET_ASSIGN(const live::Layout layout, live::Layout::make({.seed = kTraceSeed}));
  FRESHET_ASSIGN(live::Weights weights, live::Weights::initial(layout));
  Training training(layout, corpus, std::move(weights));
  for (std::uint64_t step = 1; step <= kStepsBefore; ++step) training.step(step);
  std::vector<std::vector<std::byte>> before;
  for (const TensorView& view : training.views()) before.emplace_back(view.data.begin(), view.data.end());
  for (std::uint64_t step = 1; step <= kStepsBetween; ++step) training.step(kStepsBefore + step);
  RecordedTrace trace;
  const std::vector<TensorView> after = training.views();
  for (std::size_t i = 0; i < after.size(); ++i) {
    TensorPair pair{.dtype = DType::f32, .base = std::move(before[i]), .target = {}};
    pair.target.assign(after[i].data.begin(), after[i].data.end());
    add_if_changed(trace.bf16,
                   {.dtype = DType::bf16, .base = cast_to_bf16(pair.base), .target = cast_to_bf16(pair.target)});
    add_if_changed(trace.f32, std::move(pair));
  }
  return trace;
}

}  // namespace freshet::benchmarks
