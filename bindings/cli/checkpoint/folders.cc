// SPDX-License-Identifier: Apache-2.0
// `freshet checkpoint ls, get, verify, drain`: what the folders of a job's ranks and a repository hold of it.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "bindings/cli/checkpoint/checkpoint.h"
#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/durable_file.h"
#include "bindings/runtime/repository_folder.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/safetensors/safetensors.h"
#include "repo/levels/resting.h"

namespace freshet::cli {
namespace {

struct CheckpointArguments {
  std::vector<std::string> local;
  std::string external;
  SecurityOptions security;
  std::string version;  ///< "" for all models, where that may be.
  std::string out;
};

Result<std::shared_ptr<Repository>> open_external(const CheckpointArguments& arguments, RepositoryAccess access) {
  if (arguments.external.empty()) return std::shared_ptr<Repository>();
  FRESHET_ASSIGN(OpenedRepository opened,
                 open_repository(arguments.external, {.access = access, .security = arguments.security}));
  return std::shared_ptr<Repository>(std::move(opened));
}

/// Of a damaged repository the command goes on without.
Result<std::vector<std::string>> models_of(const CheckpointArguments& arguments,
                                           const Result<std::shared_ptr<Repository>>& external) {
  if (!external && external.error().code() != Code::corrupt) return fail(external.error());
  Repository* const repository = external ? external->get() : nullptr;
  if (!arguments.version.empty()) return std::vector<std::string>{version_of(arguments.version).model};
  FRESHET_ASSIGN(const std::vector<std::string> local, levels::ShardFolders::models(arguments.local));
  std::set<std::string> names(local.begin(), local.end());
  if (repository != nullptr) {
    const auto stored = repository->models();
    if (!stored && stored.error().code() != Code::corrupt) return fail(stored.error());
    if (stored) names.insert(stored->begin(), stored->end());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

Error nothing_in(const CheckpointArguments& arguments) {
  std::string places;
  for (const std::string& folder : arguments.local) places += (places.empty() ? "" : ", ") + folder;
  if (!arguments.external.empty()) places += ", " + arguments.external;
  return {Code::not_found, format("{}: there is no checkpoint{}; --local takes each rank's folder, which has a folder "
                                  "for each model",
                                  places, arguments.version.empty() ? "" : " of " + arguments.version)};
}

Json row_of(const std::string& model, const levels::RestingVersion& row) {
  return {
      {"model", model},
      {"version", row.version.number},
      {"step", row.step},
      {"ranks", row.ranks},
      {"levels", {{"local", name_of(row.local)}, {"group", name_of(row.group)}, {"external", name_of(row.external)}}},
      {"restorable", row.is_restorable()}};
}

Result<ExitCode> list_checkpoints(Program& program, const CheckpointArguments& arguments) {
  const auto repository = open_external(arguments, RepositoryAccess::read);
  FRESHET_ASSIGN(const std::vector<std::string> models, models_of(arguments, repository));
  if (!repository) program.out.log(format("passed over: {}", repository.error().message()));
  std::vector<std::vector<std::string>> lines = {
      {"VERSION", "STEP", "RANKS", "LOCAL", "GROUP", "EXTERNAL", "RESTORABLE"}};
  bool any = false;
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const auto resting, levels::RestingCheckpoints::open(arguments.local, repository, model));
    FRESHET_ASSIGN(const std::vector<levels::RestingVersion> rows, resting.list());
    for (const levels::RestingVersion& row : rows) {
      any = true;
      if (program.out.json) FRESHET_TRY(program.out.emit(row_of(model, row), ""));
      lines.push_back({to_string(VersionName{model, row.version.number}), format("{}", row.step),
                       row.ranks == 0 ? "-" : format("{}", row.ranks), std::string(name_of(row.local)),
                       std::string(name_of(row.group)), std::string(name_of(row.external)),
                       row.is_restorable() ? "yes" : "no"});
    }
  }
  if (!any && !arguments.version.empty()) return fail(nothing_in(arguments));
  // A job that has no checkpoint yet has an empty list.
  if (!any) program.out.log(nothing_in(arguments).message());
  if (!program.out.json) FRESHET_TRY(program.out.write(table(lines) + "\n"));
  return ExitCode::done;
}

Result<ExitCode> get_checkpoint(Program& program, const CheckpointArguments& arguments) {
  auto repository = open_external(arguments, RepositoryAccess::read);
  const VersionName name = version_of(arguments.version);
  FRESHET_ASSIGN(const auto resting,
                 levels::RestingCheckpoints::open(arguments.local, std::move(repository), name.model));
  const auto number = name.number == 0 ? std::nullopt : std::optional(name.number);
  FRESHET_ASSIGN(const levels::WholeVersion whole, resting.get(number));
  for (const std::string& note : whole.notes) program.out.log(format("passed over: {}", note));
  std::vector<TensorView> views;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < whole.specs.size(); ++i) {
    views.push_back({.spec = whole.specs[i], .data = whole.bytes[i]});
    bytes += whole.bytes[i].size();
  }
  // A signal does not leave a half-written file beside the target.
  const Interrupt::Deferral deferral;
  FRESHET_TRY(as_output_error(write_safetensors(arguments.out, views, {}, true), arguments.out));
  const std::string got = to_string(VersionName{name.model, whole.version.number});
  FRESHET_TRY(program.out.emit({{"model", name.model},
                                {"version", whole.version.number},
                                {"step", whole.step},
                                {"from", levels::name_of(whole.from)},
                                {"tensors", views.size()},
                                {"bytes", bytes},
                                {"file", arguments.out}},
                               format("{} (step {}, {}) from {} to {}", got, whole.step, human_bytes(bytes),
                                      levels::name_of(whole.from), arguments.out)));
  return program.interrupt.requested() ? ExitCode::interrupted : ExitCode::done;
}

Result<ExitCode> verify_checkpoints(Program& program, const CheckpointArguments& arguments) {
  const auto repository = open_external(arguments, RepositoryAccess::read);
  FRESHET_ASSIGN(const std::vector<std::string> models, models_of(arguments, repository));
  VerifyReport report;
  bool any = false;
  for (const std::string& model : models) {
    FRESHET_ASSIGN(const auto resting, levels::RestingCheckpoints::open(arguments.local, repository, model));
    FRESHET_ASSIGN(const std::vector<levels::RestingVersion> rows, resting.list());
    any = any || !rows.empty();
    FRESHET_TRY(resting.verify(report));
  }
  if (!any && report.checked_bytes == 0 && report.corrupt.empty()) {
    return fail(repository ? nothing_in(arguments) : repository.error());
  }
  Json corrupt = Json::array();
  std::string text;
  for (const VerifyReport::Corrupt& one : report.corrupt) {
    const std::string version = one.version.number == 0 ? one.record : to_string(one.version);
    const std::uint32_t rank = one.rank.value_or(0);
    corrupt.push_back({{"version", version}, {"rank", rank}, {"tensor", one.tensor}, {"reason", one.reason}});
    text += format("{}, rank {}{}: {}\n", version, rank,
                   one.tensor.empty() ? "" : format(", tensor {}", printable(one.tensor)), printable(one.reason));
  }
  text += format("{} checked, {} damaged", human_bytes(report.checked_bytes), corrupt.size());
  FRESHET_TRY(program.out.emit({{"checked_bytes", report.checked_bytes}, {"corrupt", std::move(corrupt)}}, text));
  return report.corrupt.empty() ? ExitCode::done : ExitCode::corrupt;
}

Result<ExitCode> drain_checkpoints(Program& program, const CheckpointArguments& arguments) {
  if (arguments.external.empty()) {
    program.out.log("drain: name the repository: --external PLACE");
    return ExitCode::usage;
  }
  FRESHET_ASSIGN(auto repository, open_external(arguments, RepositoryAccess::create));
  const std::string model = version_of(arguments.version).model;
  FRESHET_ASSIGN(auto resting, levels::RestingCheckpoints::open(arguments.local, std::move(repository), model));
  FRESHET_ASSIGN(const std::vector<levels::RestingVersion> rows, resting.list());
  if (rows.empty()) return fail(Code::not_found, format("there are no checkpoints of {}", model));
  FRESHET_ASSIGN(const std::vector<levels::RestingVersion> brought, resting.drain());
  for (const levels::RestingVersion& row : brought) {
    FRESHET_TRY(
        program.out.emit(row_of(model, row),
                         format("{} is in {}", to_string(VersionName{model, row.version.number}), arguments.external)));
  }
  if (brought.empty()) program.out.log(format("{}: {} has all complete versions already", model, arguments.external));
  return ExitCode::done;
}

CLI::App& add_command(CLI::App& group, Program& program, const std::shared_ptr<CheckpointArguments>& arguments,
                      const char* name, const char* description) {
  CLI::App& command = *group.add_subcommand(name, description);
  add_json_flag(command, program);
  command.add_option("--local", arguments->local, "the ranks' folders of shards")->required()->type_name("DIR");
  command.add_option("--external", arguments->external, "the repository: a folder, or an address")->type_name("PLACE");
  add_client_keys(command, arguments->security);
  return command;
}

}  // namespace

void add_checkpoint_folders(CLI::App& group, Program& program) {
  {
    auto arguments = std::make_shared<CheckpointArguments>();
    CLI::App& command = add_command(group, program, arguments, "ls", "versions, and the levels that can complete them");
    command.add_option("MODEL", arguments->version, "default: all models")->check(model_check());
    act_with(command, program, arguments, list_checkpoints);
  }
  {
    auto arguments = std::make_shared<CheckpointArguments>();
    CLI::App& command =
        add_command(group, program, arguments, "get", "write a version's whole tensors to a file, proved, or nothing");
    add_version(command, "MODEL[@V]", arguments->version, "a version; without @V the newest that can be completed");
    command.add_option("-o,--out", arguments->out, "the safetensors file")->required()->type_name("F");
    act_with(command, program, arguments, get_checkpoint);
  }
  {
    auto arguments = std::make_shared<CheckpointArguments>();
    CLI::App& command = add_command(group, program, arguments, "verify", "read every byte and compare digests");
    command.add_option("MODEL", arguments->version, "default: all models")->check(model_check());
    act_with(command, program, arguments, verify_checkpoints);
  }
  {
    auto arguments = std::make_shared<CheckpointArguments>();
    CLI::App& command = add_command(group, program, arguments, "drain",
                                    "bring complete versions from a job's folders to the repository");
    add_model(command, arguments->version);
    act_with(command, program, arguments, drain_checkpoints);
  }
}

}  // namespace freshet::cli
