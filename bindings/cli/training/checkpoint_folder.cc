// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/training/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "bindings/cli/training/loss_json.h"
#include "core/base/format.h"
#include "core/words/number.h"

namespace freshet::cli {
namespace {

namespace fs = std::filesystem;

/// The first that is there.
constexpr const char* kWeightsNames[] = {"model.safetensors.index.json", "model.safetensors",
                                         "adapter_model.safetensors"};

/// The last number of a member; nothing where no record has one.
std::optional<double> last_number(const LossRecords& records, std::string_view name) {
  const auto column = std::ranges::find(records.names, name);
  if (column == records.names.end()) return std::nullopt;
  const auto at = static_cast<std::uint32_t>(column - records.names.begin());
  for (auto row = records.rows.rbegin(); row != records.rows.rend(); ++row) {
    const auto number = std::ranges::find(*row, at, [](const auto& cell) { return cell.first; });
    if (number != row->end()) return freshet::number_in<double>(number->second);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> step_of_checkpoint(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  constexpr std::string_view kBegin = "checkpoint-";
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with(kBegin) ? freshet::number_in<std::uint64_t>(name.substr(kBegin.size())) : std::nullopt;
}

Result<std::string> weights_of_checkpoint(const std::string& folder) {
  std::error_code error;
  std::string path = folder;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (fs::is_symlink(path, error)) {
    return fail(Code::invalid_argument,
                format("{}: not taken: it is a symbolic link to a folder; name the folder itself", path));
  }
  for (const char* name : kWeightsNames) {
    if (fs::exists(path + "/" + name, error)) return path + "/" + name;
  }
  const bool has_pickle = fs::exists(path + "/pytorch_model.bin", error);
  return fail(Code::invalid_argument,
              format("{}: not taken: the folder has no weights: no model.safetensors and no "
                     "model.safetensors.index.json{}",
                     path, has_pickle ? "; it has pytorch_model.bin: save with save_safetensors=True" : ""));
}

TrainingFacts facts_of(const ModelFile& file, const std::string& path) {
  TrainingFacts facts{.step = file.step(), .metrics = file.metrics()};
  const std::size_t end = path.rfind('/');
  const std::string folder = end == path.npos ? "" : path.substr(0, end);
  const auto step = step_of_checkpoint(folder);
  if (!step) return facts;
  if (facts.step == 0) facts.step = *step;
  const auto records = read_small_json_log(folder + "/trainer_state.json");
  for (const char* name : {"loss", "eval_loss"}) {
    const bool is_known = std::ranges::find(facts.metrics, name, &Metrics::value_type::first) != facts.metrics.end();
    const auto value = records && !is_known ? last_number(*records, name) : std::nullopt;
    if (value) facts.metrics.emplace_back(name, *value);
  }
  return facts;
}

}  // namespace freshet::cli
