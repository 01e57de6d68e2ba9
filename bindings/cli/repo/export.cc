// SPDX-License-Identifier: Apache-2.0
// `freshet repo export`: versions as safetensors files with their graphs beside them, as `import` takes them.

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <set>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/repo/sheets.h"
#include "core/base/format.h"
#include "core/safetensors/safetensors.h"

namespace freshet::cli {
namespace {

struct ExportArguments {
  std::vector<std::string> versions;
  bool all = false;
  std::string folder;
};

/// What was asked for, each once, in that order; a model's versions are oldest first.
Result<std::vector<VersionName>> wanted_of(const Repository& repository, const ExportArguments& arguments) {
  std::vector<VersionName> wanted;
  std::vector<std::string> models;
  for (const std::string& text : arguments.versions) {
    FRESHET_ASSIGN(const VersionName name, repository.resolve(text));
    if (!arguments.all) {
      FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
      wanted.push_back(record.manifest.name);
    } else {
      models.push_back(name.model);
    }
  }
  if (arguments.all && models.empty()) {
    FRESHET_ASSIGN(models, repository.models());
  }
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const std::vector<LineageRow> rows, repository.versions(model));
    for (const LineageRow& row : rows) {
      if (!row.retired) wanted.push_back(row.version);
    }
  }
  std::set<VersionName> seen;
  std::erase_if(wanted, [&seen](const VersionName& name) { return !seen.insert(name).second; });
  return wanted;
}

/// Whether the file has these tensors, whatever its metadata.
bool has_tensors(const std::string& path, const std::vector<TensorView>& tensors) {
  const auto file = SafetensorsFile::read(path);
  return file && std::ranges::equal(file->tensors(), tensors, [](const TensorView& a, const TensorView& b) {
           return a.spec.name == b.spec.name && a.spec.dtype == b.spec.dtype && a.spec.shape == b.spec.shape &&
                  std::ranges::equal(a.data, b.data);
         });
}

Status write_weights(const Repository& repository, const VersionRecord& record, const std::string& path) {
  const auto specs = record.manifest.architecture->tensors();
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[record.manifest.architecture->bytes()]);
  if (memory == nullptr) return fail(Code::out_of_space, "not enough memory for the tensors");
  std::vector<TensorView> views;
  std::vector<Repository::TensorRead> reads;
  std::uint64_t offset = 0;
  for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
    const MutableBytes out(memory.get() + offset, specs[tensor].bytes());
    offset += out.size();
    views.push_back({.spec = specs[tensor], .data = out});
    reads.push_back({.tensor = tensor, .out = out});
  }
  FRESHET_TRY(repository.read(record, reads));
  Status written = write_new_safetensors(path, views, record.manifest.tags, true);
  if (written || written.error().code() != Code::already_exists || !has_tensors(path, views)) return written;
  // Tags can be changed after a put.
  return write_safetensors(path, views, record.manifest.tags, true);
}

/// A graph says what a version is, so another one that is there stays, as other weights do.
Status write_new_graph(const std::string& path, const std::string& text) {
  const Result<std::string> there = read_text_file(path, text.size());
  if (there && *there == text) return {};
  if (!there && there.error().code() == Code::not_found) return write_text_file(path, text);
  return fail(Code::already_exists, format("{} exists with another graph; write to another folder", path));
}

/// Whether the names, types and shapes of a file are all that its graph was made of.
bool is_guessed_again(const Architecture& architecture) {
  if (!architecture.parts().guessed) return false;
  std::vector<TensorSpec> specs;
  for (const TensorSpec& tensor : architecture.tensors()) {
    specs.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  const auto guessed = Architecture::guess_chain(std::move(specs));
  return guessed && (*guessed)->digest() == architecture.digest();
}

Result<Json> export_one(const Repository& repository, const VersionName& name, const std::string& folder) {
  FRESHET_ASSIGN(const VersionRecord record, repository.get(name));
  const Architecture& architecture = *record.manifest.architecture;
  const std::string stem = folder + "/" + to_string(name);
  Json answer = {{"model", name.model}, {"version", name.number}, {"file", nullptr},
                 {"graph", nullptr},    {"sheet", nullptr},       {"bytes", 0}};
  if (record.has_weights) {
    FRESHET_TRY(write_weights(repository, record, stem + std::string(kWeightsEnd)));
    answer["file"] = stem + std::string(kWeightsEnd);
    answer["bytes"] = architecture.bytes();
  }
  if (!record.has_weights || !is_guessed_again(architecture)) {
    FRESHET_TRY(write_new_graph(stem + std::string(kGraphEnd), to_graph_json(architecture) + "\n"));
    answer["graph"] = stem + std::string(kGraphEnd);
  }
  // Last: what a sheet speaks of is there.
  FRESHET_TRY(write_sheet(repository, record, !answer["graph"].is_null(), stem));
  answer["sheet"] = stem + std::string(kSheetEnd);
  return answer;
}

Result<ExitCode> export_versions(Program& program, Repository& repository, const ExportArguments& arguments) {
  FRESHET_ASSIGN(const std::vector<VersionName> wanted, wanted_of(repository, arguments));
  FRESHET_TRY(make_folder(arguments.folder));
  const Interrupt::Deferral deferral;
  std::uint64_t done = 0;
  std::optional<Error> first;
  for (const VersionName& name : wanted) {
    if (program.interrupt.requested()) return ExitCode::interrupted;
    Result<Json> answer = [&] {
      ProgressBar bar(format("export {}", to_string(name)));
      bar.show(done, 0);
      return export_one(repository, name, arguments.folder);
    }();
    if (!answer) {
      Error error = std::move(answer).error().with_context("export " + to_string(name));
      // One bad version must not keep the others out of a backup.
      const bool is_its_own = error.code() == Code::corrupt || error.code() == Code::invalid_argument ||
                              error.code() == Code::not_found || error.code() == Code::unsupported;
      if (!arguments.all || !is_its_own) return fail(std::move(error));
      if (first) program.out.log(error.message());
      if (!first) first = std::move(error);
      continue;
    }
    done += (*answer)["bytes"].get<std::uint64_t>();
    FRESHET_TRY(program.out.emit(
        *answer, format("{}  {} -> {}", to_string(name), human_bytes((*answer)["bytes"].get<std::uint64_t>()),
                        printable(arguments.folder))));
  }
  if (first) return fail(*std::move(first));
  return ExitCode::done;
}

}  // namespace

void add_export(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App& command = add_repo_command(repo, program, "export", "write versions and their graphs as files");
  command.add_option("MODEL[@V]", arguments->versions, "the version; without @V the newest")->check(reference_check());
  command.add_flag("--all", arguments->all, "every version of the named models, or of all models");
  command.add_option("-o,--output", arguments->folder, "the folder; made if it does not exist")
      ->type_name("DIR")
      ->required();
  command.footer(
      "Writes DIR/MODEL@V.safetensors, DIR/MODEL@V.graph.json (unless `import` guesses the same), and\n"
      "DIR/MODEL@V.version.json with all other facts, so that `import DIR` restores the version. Leaves out retired\n"
      "versions and pins. A line of JSON each: model, version, file, graph, sheet, bytes.\n"
      "example: freshet repo export --all net -o backup/");
  const auto check = [](const ExportArguments& given) {
    if (given.versions.empty() && !given.all) throw CLI::ValidationError("export: give MODEL[@V] or --all");
  };
  act_on_repository(command, program, arguments, RepositoryAccess::read, export_versions, check);
}

}  // namespace freshet::cli
