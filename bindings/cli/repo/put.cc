// SPDX-License-Identifier: Apache-2.0
// `freshet repo put`: one version from a graph, a file of tensors and an ancestor; or many, a line each.

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/frame/model_file.h"
#include "bindings/cli/repo/batch.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"
#include "core/safetensors/model_file.h"
#include "repo/files/import.h"

namespace freshet::cli {
namespace {

struct PutArguments {
  std::string model;
  std::string graph;
  std::string weights;
  std::string ancestor;
  std::string batch;
  std::optional<double> quality;
  std::vector<std::string> tags;
  bool dedup = false;
  bool deltas = false;
};

/// What the command's files have.
struct PutFiles {
  std::shared_ptr<const Architecture> architecture;
  std::optional<ModelFile> weights;
};

Result<PutFiles> read_files(const PutArguments& arguments) {
  PutFiles files;
  if (!arguments.graph.empty()) {
    FRESHET_ASSIGN(files.architecture, read_graph(arguments.graph));
  }
  if (!arguments.weights.empty()) {
    FRESHET_ASSIGN(ModelFile read, open_weights(arguments.weights, arguments.deltas));
    files.weights.emplace(std::move(read));
  }
  const std::string& batch = arguments.batch;
  if (!batch.empty() && batch != "-" && ::access(batch.c_str(), R_OK) != 0) return fail_errno(errno, batch);
  return files;
}

Result<ExitCode> put(Program& program, Repository& repository, const PutArguments& arguments, const PutFiles& files) {
  if (!arguments.batch.empty()) {
    return put_batch(program, repository, arguments.batch, {.dedup = arguments.dedup, .deltas = arguments.deltas});
  }
  StageRequest request{.model = arguments.model,
                       .architecture = files.architecture,
                       .quality = arguments.quality,
                       .dedup = arguments.dedup,
                       .deltas = arguments.deltas};
  const std::optional<ModelFile>& file = files.weights;
  if (file) {
    log_left_out(program.out, arguments.weights, *file);
    request.tensors = std::span<const TensorView>(file->tensors());
    request.step = file->step();
    request.metrics = file->metrics();
  }
  if (!arguments.ancestor.empty()) {
    FRESHET_ASSIGN(request.ancestor, repository.resolve(arguments.ancestor));
  }
  Tags tags;
  for (const std::string& text : arguments.tags) tags.push_back(tag_of(text));
  request.tags = merged_tags(file ? file->tags() : Tags{}, std::move(tags));
  Result<Json> answer = put_one(repository, request, file ? &*file : nullptr);
  if (!answer && file && answer.error().code() == Code::invalid_argument) {
    return fail(std::move(answer).error().with_context(arguments.weights));
  }
  if (!answer) return fail(std::move(answer).error());
  FRESHET_TRY(program.out.emit(*answer, text_of_put(*answer)));
  return ExitCode::done;
}

void check_put_options(const PutArguments& arguments) {
  const bool single = !arguments.model.empty();
  if (single == !arguments.batch.empty()) throw CLI::ValidationError("put: give either MODEL or --batch FILE");
  if (single && arguments.graph.empty() && arguments.weights.empty()) {
    throw CLI::ValidationError("put: MODEL needs --graph, --weights or both");
  }
  const bool has_own = !arguments.graph.empty() || !arguments.weights.empty() || !arguments.ancestor.empty() ||
                       arguments.quality || !arguments.tags.empty();
  if (!single && has_own) {
    throw CLI::ValidationError(
        "put: --graph, --weights, --ancestor, --quality and --tag stand in the lines of --batch");
  }
}

}  // namespace

Result<ModelFile> open_weights(const std::string& path, bool deltas) {
  return deltas ? ModelFile::read(path) : ModelFile::map(path);
}

Result<Json> put_one(Repository& repository, const StageRequest& request, const ModelFile* weights) {
  FRESHET_ASSIGN(const StoredPut stored, stage_and_put(repository, request, weights));
  return Json{{"model", stored.name.model},
              {"version", stored.name.number},
              {"inherited_bytes", stored.inherited_bytes},
              {"own_bytes", stored.own_bytes}};
}

std::string text_of_put(const Json& answer) {
  return format("{}@{}", answer["model"].get<std::string>(), answer["version"].get<VersionNumber>());
}

void add_put(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<PutArguments>();
  CLI::App& command = add_repo_command(repo, program, "put", "store a new version, and print its MODEL@V");
  command.add_option("MODEL", arguments->model, "the model's name")->check(model_check());
  command.add_option("--graph", arguments->graph, "the architecture: a graph file")->type_name("G.json");
  command
      .add_option("--weights", arguments->weights, "the tensors: a safetensors file, or the index of a model in parts")
      ->type_name("F.safetensors");
  command.add_option("--ancestor", arguments->ancestor, "the version that it was transferred from")
      ->type_name("MODEL@V")
      ->check(reference_check());
  command.add_option("--quality", arguments->quality, "the version's quality; larger is better")
      ->type_name("Q")
      ->check(number_check());
  command.add_option("--tag", arguments->tags, "a tag; repeatable")
      ->type_name("K=V")
      ->check(tag_check())
      ->allow_extra_args(false);
  command.add_flag("--dedup", arguments->dedup, "inherit tensors with equal content from any version");
  command.add_flag("--deltas", arguments->deltas,
                   "keep fine-tuned tensors as lossless differences from the ancestor's, if that saves a quarter");
  command.add_option("--batch", arguments->batch, "one put per line: {model, graph, weights, ancestor, quality, tags}")
      ->type_name("FILE.jsonl");
  command.footer(
      "The version inherits a tensor of a layer in the longest common prefix with the ancestor, if the file leaves "
      "the\n"
      "tensor out or holds equal bytes. A line of JSON: model, version, inherited_bytes, own_bytes.\n"
      "example: freshet repo put net --graph g.json --weights tuned.safetensors --ancestor net@3 --quality 0.91");
  command.callback([&program, arguments] {
    check_put_options(*arguments);
    require_repository(program);
    program.action = [&program, arguments]() -> Result<ExitCode> {
      // What cannot be read begins no repository.
      FRESHET_ASSIGN(const PutFiles files, read_files(*arguments));
      FRESHET_ASSIGN(const OpenedRepository repository,
                     open_repository(program.repository,
                                     {.access = RepositoryAccess::create, .security = program.repository_security}));
      say_if_part(program, repository);
      return put(program, *repository, *arguments, files);
    };
  });
}

}  // namespace freshet::cli
