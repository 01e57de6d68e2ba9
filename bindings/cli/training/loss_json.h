// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer's log in JSON: Hugging Face's trainer_state.json (its `log_history`), or records, one a line (JSONL, as
/// Weights & Biases exports a run's history) or in a list.

#include <cstdint>
#include <istream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace freshet::cli {

struct LossRecords {
  std::vector<std::string> names;  ///< Of the members that are numbers in some record, in their order.
  /// The numbers of each record as text, "NaN" among them, with their places in `names`.
  std::vector<std::vector<std::pair<std::uint32_t, std::string>>> rows;
};

/// From the stream's place to its end; `path` is its name in errors: io_error; invalid_argument for another text, one
/// of more than 64 MiB, or one with more than 4,096 members that are numbers.
Result<LossRecords> read_json_log(std::istream& file, const std::string& path);
/// The same of a file of at most 16 MiB, and not_found.
Result<LossRecords> read_small_json_log(const std::string& path);

}  // namespace freshet::cli
