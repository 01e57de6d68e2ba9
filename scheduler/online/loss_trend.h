// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the loss is now, row by row, when every single loss is noise: a handful of straight lines, each fitted to the
/// rows so far with a memory of its own (3, 6, 12, … rows), and a weight for each by how well it has foretold the rows
/// that came. The weights answer the question how far back one may look: on a steady slope the long memories win, after
/// a turn the short ones do, within about as many rows as they are long. (Prediction with expert advice; the little
/// that each weight is given back at every row is Herbster and Warmuth's fixed share.)
///
/// One thread at a time. Constant memory, constant time for each row: some hundred nanoseconds.

#include <array>
#include <cstdint>

namespace freshet {

class LossTrend {
 public:
  LossTrend();

  /// The next row's loss. What lies beyond 3.5 times the noise is drawn to that border first, so a spike is one row's
  /// surprise; a real step is believed when five rows have shown it. Returns what was taken: NaN for what is not
  /// finite, which is a row without news.
  double push(double loss);

  double level() const { return level_; }    ///< Of the trend at the newest row.
  double noise() const { return noise_; }    ///< Standard deviation of one row's loss about it; 0 before two rows.
  double memory() const { return memory_; }  ///< How many rows back the weights look, on (geometric) average.

 private:
  static constexpr int kLines = 11;

  /// Sums over the rows, discounted, in the coordinate "minus the row's age".
  struct Line {
    double keep = 0;  ///< Of each sum, from row to row.
    double log_memory = 0;
    double weight = 1.0 / kLines;
    double n = 0, x = 0, xx = 0, y = 0, xy = 0;
    double level = 0, slope = 0;

    double next() const { return level + slope; }
    void add(double loss, bool sloped);
  };

  double tempered(double loss);
  void weigh(double loss);

  std::array<Line, kLines> lines_;
  std::int64_t rows_ = 0;
  int side_ = 0;         ///< Of the newest row: 1 above the border, -1 below, 0 within.
  int rows_beyond_ = 0;  ///< How many of the newest rows lay there, as far as it matters.
  double level_ = 0;
  double noise_ = 0;
  double memory_ = 3;
};

}  // namespace freshet
