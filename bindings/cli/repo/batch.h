// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Batches: a file of JSON lines in, a line of output for each, in order. A bad line is answered {"error","line"} and
/// the others go on; the exit code is then 1.

#include <functional>
#include <string>

#include "bindings/cli/frame/program.h"
#include "core/safetensors/model_file.h"
#include "repo/files/import.h"

namespace freshet::cli {

inline constexpr std::size_t kBatchLineBytesMax = std::size_t{64} << 20;

/// Opens the weights of a put. An element delta is made of bytes that nobody proves again, so it needs a copy of them.
Result<ModelFile> open_weights(const std::string& path, bool deltas);
/// stage_and_put(), as {"model","version","inherited_bytes","own_bytes"}.
Result<Json> put_one(Repository& repository, const StageRequest& request, const ModelFile* weights);
std::string text_of_put(const Json& answer);

/// A file's metadata, with `tags` in the place of those of the same key, or behind them.
Tags merged_tags(Tags metadata, Tags tags);

/// Weights are named relative to the batch file, or for stdin to the current folder. `common`: what each line's request
/// begins with.
Result<ExitCode> put_batch(Program& program, Repository& repository, const std::string& path,
                           const StageRequest& common);

/// Feeds each line that is not blank to `answer` and prints what it says, as `text_of` words it for people. "-" is
/// stdin.
Result<ExitCode> for_each_line(Program& program, const std::string& path,
                               const std::function<Result<Json>(const std::string& line)>& answer,
                               const std::function<std::string(const Json&)>& text_of);

}  // namespace freshet::cli
