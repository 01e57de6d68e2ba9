// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The model's passes: gather rows, run the dense layers, and the way back by hand. Written against TensorSource, so
/// the same code trains on the trainer's memory and serves from a pinned version.

#include <Eigen/Core>
#include <array>
#include <span>
#include <vector>

#include "examples/live_run/model/layout.h"

namespace freshet::live {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A place in a text: what stands before it is the context, the byte at it is to be foretold. REQUIRES: at least
/// Layout::orders() bytes before it.
using Position = const std::uint8_t*;

/// What one batch leaves on its way through the model; reused from batch to batch. One thread at a time.
struct Pass {
  std::vector<RowPlace> rows;  ///< Of each position, by order.
  std::vector<std::uint8_t> targets;
  Matrix input;  ///< Positions x (orders * row_floats): copies of the rows.
  Matrix hidden1;
  Matrix hidden2;
  Matrix probabilities;  ///< Positions x 256.
};

/// Of the mean loss of one batch.
struct Gradients {
  std::array<Matrix, kDenseTensors> dense;
  Matrix input;  ///< By position and order, as Pass::input.
};

/// Copies the rows of each position's n-grams into pass.input.
void gather(const Layout& layout, const TensorSource& source, std::span<const Position> batch, Pass& pass);

/// The dense layers; returns the mean loss in nats per byte. REQUIRES: gathered.
double infer(const Layout& layout, const TensorSource& source, Pass& pass);

/// REQUIRES: inferred.
void backward(const Layout& layout, const TensorSource& source, const Pass& pass, Gradients& gradients);

}  // namespace freshet::live
