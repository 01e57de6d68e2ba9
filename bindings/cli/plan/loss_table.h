// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Losses as trainers log them.
///
/// A CSV file with a header and a row per training step has the columns `step` and `loss`, and perhaps `eval_loss`;
/// others are passed over, and told. Lines that begin with '#' are comments. Numbers are decimal; a loss may be NaN or
/// empty where `eval_loss` is a number.
///
/// The logs of Keras, Lightning, Hugging Face and Weights & Biases have other names (loss_columns.h), and rows with
/// gaps. A row with a loss is a row of the table. Its cost is the held-out loss at its step, between two measurements
/// on a straight line.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bindings/cli/plan/loss_columns.h"
#include "core/base/result.h"

namespace freshet::cli {

/// Rows in the file's order; the one with number i (from 1) is entry i - 1.
struct LossTable {
  std::vector<std::int64_t> steps;
  std::vector<double> losses;  ///< NaN where there is none, or where it is infinite.
  std::vector<double> costs;   ///< What a server would have seen: eval_loss, else loss. Always finite.
  bool has_eval_losses = false;
  std::vector<std::string> notes;  ///< For people: skipped columns and losses.

  std::int64_t rows() const { return static_cast<std::int64_t>(steps.size()); }
  /// The step of row i, guessed for rows after the last: the distance between the last two goes on.
  std::int64_t step_of(std::int64_t row) const;
};

/// Whether single costs of these rows scatter by more than a hundredth of what they change from the first tenth to the
/// last, as the losses of single batches do: a schedule that picks rows by their costs then picks lucky ones.
bool is_noisy(std::span<const double> costs);

/// not_found, io_error, or invalid_argument naming the line and the field.
Result<LossTable> read_loss_table(const std::string& path, const LossColumnNames& wanted = {});

}  // namespace freshet::cli
