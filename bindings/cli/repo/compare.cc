// SPDX-License-Identifier: Apache-2.0
// `freshet repo diff` and `mrca`: two versions beside each other.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct CompareArguments {
  std::string first;
  std::string second;
};

std::string lines_of(const char* sign, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += format("{} {}\n", sign, printable(name));
  return text;
}

std::string owner_text(const VersionName& owner) { return owner.number == 0 ? "?" : to_string(owner); }

std::string text_of(const VersionDiff& diff, std::uint64_t changed_bytes) {
  std::string text = lines_of("+ layer", diff.layers_added) + lines_of("- layer", diff.layers_removed);
  for (const VersionDiff::Tensor& tensor : diff.tensors_changed) {
    text += format("~ tensor {}  {}  {} -> {}\n", printable(tensor.name), human_bytes(tensor.bytes),
                   owner_text(tensor.owner_a), owner_text(tensor.owner_b));
  }
  if (diff.quality_a && diff.quality_b) {
    text += format("quality {:.4g} -> {:.4g} ({:+.4g})\n", *diff.quality_a, *diff.quality_b,
                   *diff.quality_b - *diff.quality_a);
  }
  return text + format("{} layers added, {} removed, {} tensors changed ({})", diff.layers_added.size(),
                       diff.layers_removed.size(), diff.tensors_changed.size(), human_bytes(changed_bytes));
}

Result<ExitCode> diff(Program& program, Repository& repository, const CompareArguments& arguments) {
  FRESHET_ASSIGN(const VersionName first, repository.resolve(arguments.first));
  FRESHET_ASSIGN(const VersionName second, repository.resolve(arguments.second));
  FRESHET_ASSIGN(const VersionDiff diff, repository.diff(first, second));
  std::vector<std::string> changed;
  std::uint64_t changed_bytes = 0;
  for (const VersionDiff::Tensor& tensor : diff.tensors_changed) {
    changed.push_back(tensor.name);
    changed_bytes += tensor.bytes;
  }
  FRESHET_TRY(program.out.emit({{"layers_added", diff.layers_added},
                                {"layers_removed", diff.layers_removed},
                                {"tensors_changed", changed},
                                {"changed_bytes", changed_bytes},
                                {"quality", {quality_json(diff.quality_a), quality_json(diff.quality_b)}}},
                               text_of(diff, changed_bytes)));
  return ExitCode::done;
}

Result<ExitCode> mrca(Program& program, Repository& repository, const CompareArguments& arguments) {
  FRESHET_ASSIGN(const VersionName first, repository.resolve(arguments.first));
  FRESHET_ASSIGN(const VersionName second, repository.resolve(arguments.second));
  FRESHET_ASSIGN(const std::optional<VersionName> common, repository.mrca(first, second));
  FRESHET_TRY(program.out.emit({{"version", version_json(common.value_or(VersionName{}))}},
                               common ? to_string(*common) : "none"));
  return ExitCode::done;
}

void add_pair(CLI::App& command, CompareArguments& arguments) {
  add_reference(command, "A", arguments.first, "MODEL, MODEL@V or MODEL@ALIAS");
  add_reference(command, "B", arguments.second, "MODEL, MODEL@V or MODEL@ALIAS");
}

}  // namespace

void add_compare(CLI::App& repo, Program& program) {
  auto of_diff = std::make_shared<CompareArguments>();
  CLI::App& difference = add_repo_command(repo, program, "diff", "the differences between A and B");
  add_pair(difference, *of_diff);
  difference.footer(
      "Layers are compared by their computation, not by name; tensors by their bytes. JSON: layers_added,\n"
      "layers_removed, tensors_changed, each a list of names; changed_bytes; quality [A's, B's].\n"
      "example: freshet repo diff net@1 net@2");
  act_on_repository(difference, program, of_diff, RepositoryAccess::read, diff);

  auto of_mrca = std::make_shared<CompareArguments>();
  CLI::App& common = add_repo_command(repo, program, "mrca", "the most recent common ancestor of A and B");
  add_pair(common, *of_mrca);
  common.footer("JSON: {version}, null if their lineages never meet. example: freshet repo mrca net@2 net@3");
  act_on_repository(common, program, of_mrca, RepositoryAccess::read, mrca);
}

}  // namespace freshet::cli
