// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer's log in JSON: Hugging Face's trainer_state.json (its `log_history`), or records, one a line (JSONL, as
/// Weights & Biases exports a run's history) or in a list.

#include <string>
#include <vector>

#include "core/base/result.h"

namespace freshet::cli {

struct LossRecords {
  std::vector<std::string> names;              ///< Of the members that are numbers in some record, in their order.
  std::vector<std::vector<std::string>> rows;  ///< The numbers as text, "nan" among them; "" where there is none.
};

/// By its first character.
bool is_json_log(const std::string& path);

/// Errors name the file: not_found, io_error; invalid_argument for another text, or one of more than 256 MiB.
Result<LossRecords> read_json_log(const std::string& path);

}  // namespace freshet::cli
