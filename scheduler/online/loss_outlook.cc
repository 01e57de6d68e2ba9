// SPDX-License-Identifier: Apache-2.0
#include "scheduler/online/loss_outlook.h"

#include <algorithm>
#include <cmath>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr double kExponents[] = {0.15, 0.3, 0.5, 0.75, 1, 1.5, 2.5};
constexpr double kPowerScales[] = {0.01, 0.05, 0.2, 0.6};  ///< As shares of the rows so far, like the next line.
constexpr double kExponentialScales[] = {0.1, 0.17, 0.3, 0.5, 0.8, 1.3, 2.2, 4};
constexpr double kMemory = 0.7;  ///< A row's weight falls by e over this share of the rows so far.
constexpr double kCaution = 4;   ///< By which misfit is divided before it is held against a shape: residuals of a
                                 ///< training run are far from independent.
constexpr double kLeastWeight = 0.01;
constexpr std::size_t kBlocksLeast = 4;
constexpr double kFirstShare = 0.05;  ///< Of the rows: the first ones may be of another size altogether,
constexpr double kFirstSpreads = 10;  ///< and are drawn to within so many times the range of the others.

double log_ratio(double row, double scale) { return std::log1p(row / scale); }

/// A run that begins at 10^6 and is at 1 ten rows later says nothing by that about the way from there, but in squares
/// it would say everything.
std::vector<LossRecord::Block> with_first_ones_drawn_in(std::vector<LossRecord::Block> blocks, double rows) {
  const auto rest = std::find_if(blocks.begin(), blocks.end(),
                                 [rows](const LossRecord::Block& block) { return block.at >= kFirstShare * rows; });
  if (rest == blocks.end()) return blocks;
  const auto [low, high] = std::minmax_element(
      rest, blocks.end(), [](const LossRecord::Block& a, const LossRecord::Block& b) { return a.loss < b.loss; });
  const double least = low->loss, most = high->loss;
  const double margin = kFirstSpreads * (most - least);
  for (auto block = blocks.begin(); block != rest; ++block) {
    block->loss = std::clamp(block->loss, least - margin, most + margin);
  }
  return blocks;
}

}  // namespace

struct LossOutlook::Points {
  const std::vector<LossRecord::Block>& blocks;
  std::vector<double> weights;
};

void LossOutlook::try_shape(const Points& points, Family family, double exponent, double scale,
                            const std::vector<double>& basis) {
  double n = 0, x = 0, xx = 0, y = 0, xy = 0;
  for (std::size_t i = 0; i < basis.size(); ++i) {
    const double weight = points.weights[i];
    const double loss = points.blocks[i].loss;
    n += weight;
    x += weight * basis[i];
    xx += weight * basis[i] * basis[i];
    y += weight * loss;
    xy += weight * basis[i] * loss;
  }
  const double determinant = n * xx - x * x;
  const double gain = determinant > 1e-12 * n * xx ? std::max(0.0, (n * xy - x * y) / determinant) : 0;
  const double floor = (y - gain * x) / n;
  double misfit = 0;
  for (std::size_t i = 0; i < basis.size(); ++i) {
    const double residual = points.blocks[i].loss - gain * basis[i] - floor;
    misfit += points.weights[i] * residual * residual;
  }
  shapes_.push_back({family, exponent, scale, gain, floor, misfit});
}

void LossOutlook::fit(const std::vector<LossRecord::Block>& recorded, std::int64_t row) {
  row_ = row;
  if (recorded.size() < kBlocksLeast) return;
  shapes_.clear();
  const double rows = static_cast<double>(row);
  const std::vector<LossRecord::Block> blocks = with_first_ones_drawn_in(recorded, rows);
  Points points{.blocks = blocks, .weights = {}};
  double sum = 0, squares = 0;
  for (const LossRecord::Block& block : blocks) {
    const double weight = block.rows * std::exp(-(rows - block.at) / (kMemory * rows));
    points.weights.push_back(weight);
    sum += weight;
    squares += weight * weight;
  }
  std::vector<double> logs(blocks.size());
  std::vector<double> basis(blocks.size());
  for (const double share : kPowerScales) {
    const double scale = share * rows + 1;
    for (std::size_t i = 0; i < logs.size(); ++i) logs[i] = log_ratio(blocks[i].at, scale);
    for (const double exponent : kExponents) {
      for (std::size_t i = 0; i < logs.size(); ++i) basis[i] = std::exp(-exponent * logs[i]);
      try_shape(points, Family::power, exponent, scale, basis);
    }
  }
  for (const double share : kExponentialScales) {
    const double scale = share * rows;
    for (std::size_t i = 0; i < basis.size(); ++i) basis[i] = std::exp(-blocks[i].at / scale);
    try_shape(points, Family::exponential, 0, scale, basis);
  }

  // So far, `weight` holds the misfit.
  std::sort(shapes_.begin(), shapes_.end(), [](const Shape& a, const Shape& b) { return a.weight < b.weight; });
  const double independent = sum * sum / squares;
  const double least = shapes_.front().weight;
  const double unit = std::max(least / std::max(1.0, independent - 3), 1e-300);
  double total = 0;
  for (Shape& shape : shapes_) {
    shape.weight = std::exp(-(shape.weight - least) / (2 * kCaution * unit));
    total += shape.weight;
  }
  std::erase_if(shapes_, [total](const Shape& shape) { return shape.weight < kLeastWeight * total; });
  total = 0;
  for (const Shape& shape : shapes_) total += shape.weight;
  for (Shape& shape : shapes_) shape.weight /= total;
}

double LossOutlook::at(double row) const {
  double loss = 0;
  for (const Shape& shape : shapes_) {
    const double basis = shape.family == Family::power ? std::exp(-shape.exponent * log_ratio(row, shape.scale))
                                                       : std::exp(-row / shape.scale);
    loss += shape.weight * (shape.gain * basis + shape.floor);
  }
  return loss;
}

std::string LossOutlook::text() const {
  if (shapes_.empty()) return "";
  const Shape& shape = shapes_.front();
  const std::string sum = format(" + {:.6g}, with {:.0f} % of the weight", shape.floor, shape.weight * 100);
  if (shape.family == Family::exponential) return format("{:.6g} exp(-x/{:.6g})", shape.gain, shape.scale) + sum;
  return format("{:.6g} (1 + x/{:.6g})^-{:.6g}", shape.gain, shape.scale, shape.exponent) + sum;
}

}  // namespace freshet
