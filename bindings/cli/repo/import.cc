// SPDX-License-Identifier: Apache-2.0
// `freshet repo import`: safetensors files and folders of them, as versions.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/frame/model_file.h"
#include "bindings/cli/frame/number_order.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/repo/batch.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/repo/sheets.h"
#include "bindings/cli/training/checkpoint_folder.h"
#include "core/base/format.h"
#include "core/safetensors/model_file.h"
#include "repo/files/import.h"
#include "repo/tier/served_paths.h"

namespace freshet::cli {
namespace {

namespace fs = std::filesystem;

struct ImportArguments {
  std::vector<std::string> paths;
  std::string model;
  std::string graph;
  std::string ancestor;
  bool plain = false;
  bool deltas = false;

  /// Whoever says what the files are takes none for what it was elsewhere.
  bool takes_sheets() const { return !plain && model.empty() && graph.empty() && ancestor.empty(); }
};

/// A file to import, and the model that it becomes a version of.
struct Source {
  std::string path;
  std::string model;
  std::string graph;  ///< Empty: its chain of layers is guessed.
  std::uint64_t bytes = 0;
};

/// "net" of folder/net@7.safetensors and of folder/net.safetensors.
Result<std::string> model_of(const std::string& path) {
  std::string stem = fs::path(is_safetensors_index(path) ? stem_of_safetensors_index(path) : path).filename().string();
  if (stem.ends_with(kWeightsEnd)) stem.resize(stem.size() - kWeightsEnd.size());
  stem = stem.substr(0, stem.find('@'));
  if (Status named = check_model_name(stem); !named) {
    return fail(
        std::move(named).error().with_context(format("{}: the file's name is not a model's name; give --model", path)));
  }
  return stem;
}

/// Leaves out the parts that an index among the files stands for. A part without its index is no model: an error.
Status drop_parts(std::vector<std::string>& files) {
  std::set<std::string> parts;
  for (const std::string& file : files) {
    if (!is_safetensors_index(file)) continue;
    FRESHET_ASSIGN(const std::vector<std::string> named, files_of_safetensors_index(file));
    parts.insert(named.begin(), named.end());
  }
  std::erase_if(files, [&](const std::string& file) { return parts.contains(file); });
  for (const std::string& file : files) {
    if (!has_name_of_part(file)) continue;
    if (const auto part = part_of_model(file)) return fail(Code::invalid_argument, format("{}: {}", file, *part));
  }
  return {};
}

/// The weights of the folders checkpoint-N in a folder, in the order of N. One without weights, or a link, is an error.
Result<std::vector<std::string>> weights_of_checkpoints(const std::string& folder) {
  std::vector<std::pair<std::uint64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const auto step = step_of_checkpoint(at->path().string());
    if (step && at->is_directory(error)) found.emplace_back(*step, at->path().string());
  }
  if (error) return fail(Code::io_error, format("{}: {}", folder, error.message()));
  std::ranges::sort(found);
  std::vector<std::string> files;
  for (const auto& [step, path] : found) {
    FRESHET_ASSIGN(files.emplace_back(), weights_of_checkpoint(path));
  }
  return files;
}

/// The files that are named, or lie in the folders that are; weights, and of versions without any, the sheets. Then
/// those of the folders checkpoint-N.
Result<std::vector<std::string>> files_of(const std::string& path, bool takes_sheets) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  FRESHET_ASSIGN(const std::vector<std::string> checkpoints, weights_of_checkpoints(path));
  std::vector<std::string> files;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    if (name.ends_with(kWeightsEnd) || is_safetensors_index(name)) files.push_back(at->path().string());
    if (!takes_sheets || !name.ends_with(kSheetEnd)) continue;
    const std::string stem = at->path().string().substr(0, at->path().string().size() - kSheetEnd.size());
    if (!fs::exists(stem + std::string(kWeightsEnd), error)) files.push_back(at->path().string());
    error.clear();
  }
  if (error) return fail(Code::io_error, format("{}: {}", path, error.message()));
  FRESHET_TRY(drop_parts(files));
  if (files.empty() && checkpoints.empty()) {
    return fail(Code::invalid_argument, format("{}: the folder has no *{}{}, and no checkpoint-N", path, kWeightsEnd,
                                               takes_sheets ? format(", no *{}", kSheetEnd) : ""));
  }
  std::ranges::sort(files, comes_before_by_number);
  files.insert(files.end(), checkpoints.begin(), checkpoints.end());
  return files;
}

/// The path without its end, when it has it and there is a sheet beside it.
std::optional<std::string> stem_with_sheet(const std::string& file) {
  for (const std::string_view end : {kWeightsEnd, kSheetEnd}) {
    if (!file.ends_with(end)) continue;
    std::string stem = file.substr(0, file.size() - end.size());
    std::error_code error;
    if (fs::exists(stem + std::string(kSheetEnd), error)) return stem;
  }
  return std::nullopt;
}

struct Sources {
  std::vector<SheetSource> sheets;
  std::vector<Source> plain;
  std::uint64_t bytes = 0;
};

Result<Source> plain_source(const std::string& file, const ImportArguments& arguments) {
  Source source{.path = file, .model = arguments.model, .graph = arguments.graph};
  std::error_code error;
  std::vector<std::string> parts = {file};
  if (is_safetensors_index(file)) {
    FRESHET_ASSIGN(parts, files_of_safetensors_index(file));
  }
  for (const std::string& part : parts) {
    source.bytes += fs::file_size(part, error);
    if (error) return fail_errno(error.value(), part);
  }
  if (source.model.empty()) {
    FRESHET_ASSIGN(source.model, model_of(file));
  }
  std::string beside;
  if (is_safetensors_index(file)) {
    beside = stem_of_safetensors_index(file) + std::string(kGraphEnd);
  } else if (file.ends_with(kWeightsEnd)) {
    beside = file.substr(0, file.size() - kWeightsEnd.size()) + std::string(kGraphEnd);
  }
  if (source.graph.empty() && !beside.empty() && fs::exists(beside, error)) source.graph = beside;
  return source;
}

Result<Sources> sources_of(const ImportArguments& arguments) {
  Sources sources;
  for (const std::string& path : arguments.paths) {
    FRESHET_ASSIGN(const std::vector<std::string> files, files_of(path, arguments.takes_sheets()));
    for (const std::string& file : files) {
      if (const auto stem = stem_with_sheet(file); stem && arguments.takes_sheets()) {
        FRESHET_ASSIGN(SheetSource source, read_sheet_source(*stem));
        sources.bytes += source.bytes;
        sources.sheets.push_back(std::move(source));
      } else {
        FRESHET_ASSIGN(Source source, plain_source(file, arguments));
        sources.bytes += source.bytes;
        sources.plain.push_back(std::move(source));
      }
    }
  }
  return sources;
}

/// A file below a source of the tiers that FRESHET_TIER names comes from its copy there. One that cannot be read from
/// it for whatever reason is read where it lies, and so are a model's parts.
Result<ModelFile> open_served(const std::string& path, bool deltas) {
  const char* config_file = std::getenv("FRESHET_TIER");
  const bool served = config_file != nullptr && *config_file != '\0' && !is_safetensors_index(path);
  if (!served) return open_weights(path, deltas);
  const Result<tier::Config> config = tier::read_config(config_file);
  if (!config) return open_weights(path, deltas);
  const Result<tier::ServedPaths> paths = tier::ServedPaths::open(*config);
  const std::string place = paths ? paths->place_of(path) : path;
  if (place != path) {
    if (Result<ModelFile> file = ModelFile::read(place); file) return file;
  }
  return open_weights(path, deltas);
}

Result<Json> import_one(const Output& out, Repository& repository, const Source& source,
                        const std::optional<VersionName>& ancestor, bool deltas) {
  const auto in_context = [&source](Error error) { return fail(std::move(error).with_context(source.path)); };
  StageRequest request{.model = source.model, .ancestor = ancestor, .deltas = deltas};
  if (!source.graph.empty()) {
    FRESHET_ASSIGN(request.architecture, read_graph(source.graph));
  }
  Result<ModelFile> file = open_served(source.path, deltas);
  if (!file) return fail(std::move(file).error());
  log_left_out(out, source.path, *file);
  request.tensors = std::span<const TensorView>(file->tensors());
  TrainingFacts facts = facts_of(*file, source.path);
  request.step = facts.step;
  request.metrics = std::move(facts.metrics);
  request.tags = file->tags();
  Result<Json> answer = put_one(repository, request, &*file);
  // Of a file that changed, the error names it.
  if (!answer) return file->check_unchanged() ? in_context(std::move(answer).error()) : fail(std::move(answer).error());
  (*answer)["file"] = source.path;
  (*answer)["guessed"] = source.graph.empty();
  return answer;
}

Result<ExitCode> import_plain(Program& program, Repository& repository, const ImportArguments& arguments,
                              const Sources& sources, std::uint64_t done) {
  std::map<std::string, VersionName> newest;  // Of this import, by model.
  std::optional<VersionName> first;
  if (!arguments.ancestor.empty()) {
    FRESHET_ASSIGN(first, repository.resolve(arguments.ancestor));
  }
  for (const Source& source : sources.plain) {
    if (program.interrupt.requested()) return ExitCode::interrupted;
    const auto before = newest.find(source.model);
    const std::optional<VersionName> ancestor = before != newest.end() ? std::optional(before->second) : first;
    Result<Json> answer = [&] {
      ProgressBar bar("import");
      bar.show(done, sources.bytes);
      return import_one(program.out, repository, source, ancestor, arguments.deltas);
    }();
    if (!answer) return fail(std::move(answer).error());
    done += source.bytes;
    const auto number = (*answer)["version"].get<VersionNumber>();
    newest[source.model] = {.model = source.model, .number = number};
    FRESHET_TRY(program.out.emit(*answer, format("{}@{}  {}{}", source.model, number, printable(source.path),
                                                 source.graph.empty() ? "  (layers guessed)" : "")));
  }
  return ExitCode::done;
}

Result<ExitCode> import(Program& program, Repository& repository, const ImportArguments& arguments,
                        const Sources& sources) {
  const Interrupt::Deferral deferral;
  std::uint64_t done = 0;
  if (!sources.sheets.empty()) {
    FRESHET_ASSIGN(const ExitCode code, restore_all(program, repository, sources.sheets,
                                                    {.deltas = arguments.deltas, .total_bytes = sources.bytes}, done));
    if (code != ExitCode::done) return code;
  }
  return import_plain(program, repository, arguments, sources, done);
}

}  // namespace

void add_import(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App& command =
      add_repo_command(repo, program, "import", "store exported versions, or safetensors files and folders of them");
  command.add_option("PATH", arguments->paths, "a file, or a folder of them")->required();
  command
      .add_option("--model", arguments->model,
                  "all files are versions of this model; default: the model in the file's name")
      ->check(model_check());
  command.add_option("--graph", arguments->graph, "the architecture of all files")->type_name("G.json");
  command.add_option("--ancestor", arguments->ancestor, "the ancestor of the first file")
      ->type_name("MODEL@V")
      ->check(reference_check());
  command.add_flag("--plain", arguments->plain, "ignore the sheets that `export` wrote beside the files");
  command.add_flag("--deltas", arguments->deltas,
                   "keep fine-tuned tensors as lossless differences from the ancestor's, if that saves a quarter");
  command.footer(
      "With NAME.version.json beside a file (as `export` writes it), the version is restored: its number if that is "
      "free,\n"
      "ancestor, quality, tags, time, aliases and inherited tensors. Without it, a folder's files come in the order "
      "of\n"
      "their names (step9 before step10). The ancestor of a file is the file before it of the same model. Its graph "
      "is\n"
      "NAME.graph.json, or a guessed chain of layers. A model in parts is one version, by its index\n"
      "(NAME.safetensors.index.json). The folders checkpoint-N of a folder come in the order of N, which is the step. "
      "The same is true with --model, --graph, --ancestor or --plain.\n"
      "A line of JSON each: as put, and file, guessed, exported_as (for another number), was_there.\n"
      "examples: freshet repo import backup/\n"
      "          freshet repo import --model net checkpoints/");
  command.callback([&program, arguments] {
    require_repository(program);
    program.action = [&program, arguments]() -> Result<ExitCode> {
      // What cannot be read makes no folder.
      FRESHET_ASSIGN(const Sources sources, sources_of(*arguments));
      FRESHET_ASSIGN(const auto repository,
                     open_repository(program.repository,
                                     {.access = RepositoryAccess::create, .security = program.repository_security}));
      return import(program, *repository, *arguments, sources);
    };
  });
}

}  // namespace freshet::cli
