// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/model.h"

#include <algorithm>
#include <cmath>

namespace freshet::live {
namespace {

using MatrixView = Eigen::Map<const Matrix>;
using RowView = Eigen::Map<const Eigen::RowVectorXf>;

MatrixView weight(const Layout& layout, const TensorSource& source, DenseTensor tensor) {
  return {source.tensor(tensor), static_cast<Eigen::Index>(layout.rows_of(tensor)),
          static_cast<Eigen::Index>(layout.columns_of(tensor))};
}

RowView bias(const Layout& layout, const TensorSource& source, DenseTensor tensor) {
  return {source.tensor(tensor), static_cast<Eigen::Index>(layout.columns_of(tensor))};
}

/// Turns rows of scores into probabilities; subtracting the largest first keeps the exponentials finite.
void softmax_rows(Matrix& scores) {
  for (Eigen::Index i = 0; i < scores.rows(); ++i) {
    auto row = scores.row(i).array();
    row = (row - row.maxCoeff()).exp();
    row /= row.sum();
  }
}

}  // namespace

void gather(const Layout& layout, const TensorSource& source, std::span<const Position> batch, Pass& pass) {
  const std::uint32_t row_floats = layout.row_floats();
  pass.rows.clear();
  pass.targets.clear();
  pass.input.resize(static_cast<Eigen::Index>(batch.size()), layout.input_floats());
  float* out = pass.input.data();
  for (const Position position : batch) {
    pass.targets.push_back(*position);
    for (std::uint32_t order = 1; order <= layout.orders(); ++order, out += row_floats) {
      const RowPlace place = layout.row_of(order, position);
      pass.rows.push_back(place);
      const float* row = source.tensor(place.tensor) + std::size_t{place.row_in_block} * row_floats;
      std::copy_n(row, row_floats, out);
    }
  }
}

double infer(const Layout& layout, const TensorSource& source, Pass& pass) {
  pass.hidden1.noalias() = pass.input * weight(layout, source, kHidden1Weight);
  pass.hidden1.rowwise() += bias(layout, source, kHidden1Bias);
  pass.hidden1 = pass.hidden1.cwiseMax(0.0f);
  pass.hidden2.noalias() = pass.hidden1 * weight(layout, source, kHidden2Weight);
  pass.hidden2.rowwise() += bias(layout, source, kHidden2Bias);
  pass.hidden2 = pass.hidden2.cwiseMax(0.0f);
  pass.probabilities.noalias() = pass.hidden2 * weight(layout, source, kOutputWeight);
  pass.probabilities.rowwise() += bias(layout, source, kOutputBias);
  softmax_rows(pass.probabilities);

  double sum = 0;
  for (Eigen::Index i = 0; i < pass.probabilities.rows(); ++i) {
    const float probability = pass.probabilities(i, pass.targets[static_cast<std::size_t>(i)]);
    sum -= std::log(std::max(probability, 1e-30f));
  }
  return sum / static_cast<double>(std::max<std::size_t>(pass.targets.size(), 1));
}

void backward(const Layout& layout, const TensorSource& source, const Pass& pass, Gradients& gradients) {
  const auto positions = static_cast<float>(pass.targets.size());
  auto& dense = gradients.dense;

  Matrix delta = pass.probabilities;  // Of the scores: softmax with cross entropy leaves p - 1[target].
  for (Eigen::Index i = 0; i < delta.rows(); ++i) delta(i, pass.targets[static_cast<std::size_t>(i)]) -= 1.0f;
  delta /= positions;
  dense[kOutputWeight].noalias() = pass.hidden2.transpose() * delta;
  dense[kOutputBias] = delta.colwise().sum();

  Matrix below = delta * weight(layout, source, kOutputWeight).transpose();
  below.array() *= (pass.hidden2.array() > 0.0f).cast<float>();
  dense[kHidden2Weight].noalias() = pass.hidden1.transpose() * below;
  dense[kHidden2Bias] = below.colwise().sum();

  Matrix bottom = below * weight(layout, source, kHidden2Weight).transpose();
  bottom.array() *= (pass.hidden1.array() > 0.0f).cast<float>();
  dense[kHidden1Weight].noalias() = pass.input.transpose() * bottom;
  dense[kHidden1Bias] = bottom.colwise().sum();
  gradients.input.noalias() = bottom * weight(layout, source, kHidden1Weight).transpose();
}

}  // namespace freshet::live
