// SPDX-License-Identifier: Apache-2.0
#include "scheduler/online/loss_trend.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace freshet {
namespace {

constexpr double kShortestMemory = 3;
constexpr double kSpike = 3.5;  ///< In units of the noise.
/// So many rows one after the other beyond the border on one side are no spike: the next is taken as it is. Where there
/// is no noise (the losses stood still for a while), the border alone would hold the trend back for ever.
constexpr int kBelievedRows = 5;
constexpr double kNoiseMemory = 50;     ///< Rows.
constexpr double kLargeResidual = 2.5;  ///< In units of the noise: from here on a row's verdict grows linearly only.
constexpr double kShare = 0.001;        ///< Of the weights is dealt out evenly at every row.
constexpr double kMeanToDeviation = 1.2533;  ///< sqrt(pi / 2): of a normal distribution.
constexpr double kTiny = 1e-300;

double penalty(double residual) {
  const double r = std::fabs(residual);
  return r < kLargeResidual ? r * r / 2 : kLargeResidual * (r - kLargeResidual / 2);
}

}  // namespace

LossTrend::LossTrend() {
  double memory = kShortestMemory;
  for (Line& line : lines_) {
    line.keep = 1 - 1 / memory;
    line.log_memory = std::log(memory);
    memory *= 2;
  }
}

void LossTrend::Line::add(double loss, bool sloped) {
  // Everybody ages by one row, then the new one comes with age 0.
  const double n_old = keep * n, x_old = keep * x, y_old = keep * y;
  xx = keep * xx - 2 * x_old + n_old;
  xy = keep * xy - y_old;
  x = x_old - n_old;
  n = n_old + 1;
  y = y_old + loss;
  const double determinant = n * xx - x * x;
  slope = sloped && determinant > 1e-9 * n * xx ? (n * xy - x * y) / determinant : 0;
  level = (y - slope * x) / n;
}

double LossTrend::tempered(double loss) {
  if (rows_ < 4) return loss;
  double expected = 0;
  for (const Line& line : lines_) expected += line.weight * line.next();
  const double border = kSpike * std::max(noise_, kTiny);
  const double drawn = std::clamp(loss, expected - border, expected + border);
  const int side = loss > drawn ? 1 : loss < drawn ? -1 : 0;
  rows_beyond_ = side != 0 && side == side_ ? std::min(rows_beyond_ + 1, kBelievedRows + 1) : 1;
  side_ = side;
  return rows_beyond_ > kBelievedRows ? loss : drawn;
}

void LossTrend::weigh(double loss) {
  double expected = 0;
  for (const Line& line : lines_) expected += line.weight * line.next();
  const double deviation = std::fabs(loss - expected) * kMeanToDeviation;
  const double rate = std::max(1.0 / static_cast<double>(rows_), 1 / kNoiseMemory);
  noise_ += rate * (deviation - noise_);
  const double unit = std::max(noise_, 1e-12 * std::fabs(loss) + kTiny);

  std::array<double, kLines> penalties;
  for (int i = 0; i < kLines; ++i) penalties[i] = penalty((loss - lines_[i].next()) / unit);
  const double least = *std::min_element(penalties.begin(), penalties.end());
  double sum = 0;
  for (int i = 0; i < kLines; ++i) {
    lines_[i].weight *= std::exp(least - penalties[i]);
    sum += lines_[i].weight;
  }
  for (Line& line : lines_) line.weight = line.weight / sum * (1 - kShare) + kShare / kLines;
}

double LossTrend::push(double loss) {
  // Beyond a tenth of the largest double, sums would overflow.
  if (!(std::fabs(loss) < std::numeric_limits<double>::max() * 1e-100)) return std::numeric_limits<double>::quiet_NaN();
  const double taken = tempered(loss);
  if (rows_ > 0) weigh(taken);
  ++rows_;
  level_ = 0;
  double log_memory = 0;
  for (Line& line : lines_) {
    line.add(taken, rows_ > 2);
    level_ += line.weight * line.level;
    log_memory += line.weight * line.log_memory;
  }
  memory_ = std::exp(log_memory);
  return taken;
}

}  // namespace freshet
