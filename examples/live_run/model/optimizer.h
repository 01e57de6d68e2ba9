// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Turns gradients into steps: Adam on the dense layers, row-wise Adagrad on the tables (one number of state for a row,
/// as embedding tables of this kind are trained). The state stays with the trainer: nobody serves it, and a restarted
/// trainer begins with an empty one and a short warm-up.

#include <cstdint>
#include <memory>
#include <vector>

#include "examples/live_run/model/model.h"

namespace freshet::live {

struct LearningRates {
  float dense = 0.002f;
  float rows = 0.05f;
  float warmup_steps = 50;  ///< Rates grow from zero over so many steps.
};

/// One thread at a time.
class Optimizer {
 public:
  explicit Optimizer(const Layout& layout, const LearningRates& rates = {});

  /// Both rates are multiplied by this from the next step on: a schedule of rates is the caller's.
  void set_rate_factor(float factor) { rate_factor_ = factor; }

  /// Applies one step. Rows of the orders up to `frozen_orders` stay as they are; those that changed are appended to
  /// `touched`, some more than once.
  void step(const Pass& pass, const Gradients& gradients, std::uint32_t frozen_orders, Weights& weights,
            std::vector<RowPlace>& touched);

 private:
  void step_dense(std::uint32_t tensor, const Matrix& gradient, float rate, float* values);
  void step_row(const RowPlace& place, const float* gradient, float rate, Weights& weights);

  struct Free {
    void operator()(float* values) const;
  };

  const Layout& layout_;
  const LearningRates rates_;
  float rate_factor_ = 1;
  std::uint64_t steps_ = 0;
  std::array<std::vector<float>, kDenseTensors> mean_;
  std::array<std::vector<float>, kDenseTensors> square_;
  std::unique_ptr<float[], Free> row_squares_;  ///< From calloc: only the rows that are touched ever take memory.
};

}  // namespace freshet::live
