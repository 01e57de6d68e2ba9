// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Folders checkpoint-N, as Hugging Face's Trainer writes one for each step N that it saves: the weights are in
/// model.safetensors, or in parts by model.safetensors.index.json, and trainer_state.json tells of the training.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/safetensors/model_file.h"

namespace freshet::cli {

/// 500 of "…/checkpoint-500"; nothing of another name.
std::optional<std::uint64_t> step_of_checkpoint(std::string_view path);

/// The path of the folder's weights. invalid_argument: it is a symbolic link, or has no weights; the message says what
/// to do. Whether the weights are whole is not looked at.
Result<std::string> weights_of_checkpoint(const std::string& folder);

/// A file's facts of its training run.
struct TrainingFacts {
  std::uint64_t step = 0;
  Metrics metrics;
};
/// By its metadata. Of a file in a checkpoint-N what the metadata leave out: the step N, and the last loss and
/// eval_loss of a readable trainer_state.json.
TrainingFacts facts_of(const ModelFile& file, const std::string& path);

}  // namespace freshet::cli
