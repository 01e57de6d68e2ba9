// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which columns of a trainer's log are the step, the loss and the held-out loss: by the names that Keras' CSVLogger,
/// Lightning's CSVLogger, Hugging Face's Trainer and Weights & Biases give them, or as the user says.

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet::cli {

/// Columns that the user names; an empty one is found by its name.
struct LossColumnNames {
  std::string step;
  std::string loss;
  std::string eval_loss;
  bool any() const { return !step.empty() || !loss.empty() || !eval_loss.empty(); }
};

struct LossColumns {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  std::size_t step = kNone;
  std::size_t loss = kNone;
  std::size_t eval_loss = kNone;
  /// step,loss and perhaps eval_loss, beside others: a file that was written for `plan`, a row per step. Not a
  /// trainer's log, whose rows may have gaps.
  bool is_plain = false;
};

/// invalid_argument: there is no such column, or several could be it. The message names them, and the option.
Result<LossColumns> find_loss_columns(std::span<const std::string_view> names, const LossColumnNames& wanted);

}  // namespace freshet::cli
