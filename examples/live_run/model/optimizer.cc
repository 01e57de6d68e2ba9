// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

namespace freshet::live {
namespace {

constexpr float kMeanDecay = 0.9f;
constexpr float kSquareDecay = 0.999f;
constexpr float kRowSquareFloor = 1e-8f;

}  // namespace

void Optimizer::Free::operator()(float* values) const { std::free(values); }

Optimizer::Optimizer(const Layout& layout, const LearningRates& rates) : layout_(layout), rates_(rates) {
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    const std::uint64_t floats = layout.tensors()[tensor].bytes() / sizeof(float);
    mean_[tensor].assign(floats, 0.0f);
    square_[tensor].assign(floats, 0.0f);
  }
  row_squares_.reset(static_cast<float*>(std::calloc(layout.rows(), sizeof(float))));
  if (!row_squares_) throw std::bad_alloc();
}

void Optimizer::step(const Pass& pass, const Gradients& gradients, std::uint32_t frozen_orders, Weights& weights,
                     std::vector<RowPlace>& touched) {
  ++steps_;
  const float warmup = std::min(1.0f, static_cast<float>(steps_) / std::max(rates_.warmup_steps, 1.0f));
  const float factor = warmup * rate_factor_;
  for (std::uint32_t tensor = 0; tensor < kDenseTensors; ++tensor) {
    step_dense(tensor, gradients.dense[tensor], rates_.dense * factor, weights.tensor(tensor));
  }
  const std::uint32_t orders = layout_.orders();
  for (std::size_t i = 0; i < pass.rows.size(); ++i) {
    if (i % orders < frozen_orders) continue;
    step_row(pass.rows[i], gradients.input.data() + i * layout_.row_floats(), rates_.rows * factor, weights);
    touched.push_back(pass.rows[i]);
  }
}

void Optimizer::step_dense(std::uint32_t tensor, const Matrix& gradient, float rate, float* values) {
  const auto floats = gradient.size();
  Eigen::Map<const Eigen::ArrayXf> g(gradient.data(), floats);
  Eigen::Map<Eigen::ArrayXf> mean(mean_[tensor].data(), floats);
  Eigen::Map<Eigen::ArrayXf> square(square_[tensor].data(), floats);
  const auto step = static_cast<float>(steps_);
  const float mean_correction = 1.0f - std::pow(kMeanDecay, step);
  const float square_correction = 1.0f - std::pow(kSquareDecay, step);
  mean = kMeanDecay * mean + (1.0f - kMeanDecay) * g;
  square = kSquareDecay * square + (1.0f - kSquareDecay) * g.square();
  const float scaled = rate / mean_correction;
  Eigen::Map<Eigen::ArrayXf>(values, floats) -= scaled * mean / ((square / square_correction).sqrt() + 1e-8f);
}

void Optimizer::step_row(const RowPlace& place, const float* gradient, float rate, Weights& weights) {
  const std::uint32_t floats = layout_.row_floats();
  float sum = 0;
  for (std::uint32_t i = 0; i < floats; ++i) sum += gradient[i] * gradient[i];
  float& square = row_squares_[place.row];
  square += sum / static_cast<float>(floats);
  const float scaled = rate / std::sqrt(square + kRowSquareFloor);
  float* row = weights.tensor(place.tensor) + std::size_t{place.row_in_block} * floats;
  for (std::uint32_t i = 0; i < floats; ++i) row[i] -= scaled * gradient[i];
}

}  // namespace freshet::live
