// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How the loss will go on, as far as the run so far tells: an average over decaying powers, a (1 + x/q)^-p + c, and
/// decaying exponentials, a exp(-x/q) + c, on a grid of p and q, each with its best a ≥ 0 and c, weighted by how well
/// it fits. Newer rows count more. For deciding when to publish that serves better than one curve's exact optimum: what
/// matters is how much fall is still to come compared with the present slope, which curves that fit the past equally
/// well see quite differently; and a grid costs the same tenth of a millisecond at every call, whatever the losses are.
///
/// One thread at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/online/loss_record.h"

namespace freshet {

class LossOutlook {
 public:
  /// Learns from the run so far; `recorded` as LossRecord gives them, up to `row`. With fewer than four, the outlook is
  /// flat.
  void fit(const std::vector<LossRecord::Block>& recorded, std::int64_t row);

  std::int64_t fitted_at() const { return row_; }  ///< Row of the last fit; 0: none.
  double at(double row) const;

  enum class Family { power, exponential };
  struct Shape {
    Family family = Family::exponential;
    double exponent = 0;  ///< p; unused by exponentials.
    double scale = 1;     ///< q, in rows.
    double gain = 0;      ///< a
    double floor = 0;     ///< c
    double weight = 0;    ///< The weights' sum is 1.
  };
  /// Those with more than one per cent of the weight, heaviest first.
  const std::vector<Shape>& shapes() const { return shapes_; }
  /// The heaviest one, for people; empty before the first fit.
  std::string text() const;

 private:
  struct Points;
  void try_shape(const Points& points, Family family, double exponent, double scale, const std::vector<double>& basis);

  std::vector<Shape> shapes_;
  std::int64_t row_ = 0;
};

}  // namespace freshet
