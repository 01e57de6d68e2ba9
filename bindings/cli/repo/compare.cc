// `freshet repo diff` and `mrca`: two versions beside each other.

#include <map>
#include <set>

#include "bindings/cli/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/format.h"

namespace freshet::cli {
namespace {

struct Arguments {
  std::string first;
  std::string second;
};

/// Names of the layers of `of` whose slot `other` does not have.
std::vector<std::string> layers_missing(const Architecture& of, const Architecture& other) {
  const std::set<SlotId> known(other.slots().begin(), other.slots().end());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < of.layers().size(); ++i) {
    if (!known.contains(of.slots()[i])) names.push_back(of.layers()[i].name);
  }
  return names;
}

/// Names of the tensors that both have, of one shape and type, and whose bytes differ.
std::vector<std::string> tensors_changed(const Manifest& from, const Manifest& to) {
  std::vector<std::string> names;
  const auto specs = to.architecture->tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto before = from.architecture->tensor_named(specs[i].name);
    if (!before || from.architecture->tensors()[*before] != specs[i]) continue;
    if (from.digests[*before] != to.digests[i]) names.push_back(specs[i].name);
  }
  return names;
}

std::string lines_of(const char* sign, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += format("{} {}\n", sign, printable(name));
  return text;
}

Result<ExitCode> diff(Program& program, Repository& repository, const Arguments& arguments) {
  FRESHET_ASSIGN(const VersionName first, repository.resolve(arguments.first));
  FRESHET_ASSIGN(const VersionName second, repository.resolve(arguments.second));
  FRESHET_ASSIGN(const VersionRecord from, repository.get(first));
  FRESHET_ASSIGN(const VersionRecord to, repository.get(second));
  const auto added = layers_missing(*to.manifest.architecture, *from.manifest.architecture);
  const auto removed = layers_missing(*from.manifest.architecture, *to.manifest.architecture);
  std::vector<std::string> changed;
  if (from.has_weights && to.has_weights) changed = tensors_changed(from.manifest, to.manifest);
  FRESHET_TRY(program.out.emit(
      {{"layers_added", added}, {"layers_removed", removed}, {"tensors_changed", changed}},
      lines_of("+ layer", added) + lines_of("- layer", removed) + lines_of("~ tensor", changed) +
          format("{} layers added, {} removed, {} tensors changed", added.size(), removed.size(), changed.size())));
  return ExitCode::done;
}

Result<ExitCode> mrca(Program& program, Repository& repository, const Arguments& arguments) {
  FRESHET_ASSIGN(const VersionName a, repository.resolve(arguments.first));
  FRESHET_ASSIGN(const VersionName b, repository.resolve(arguments.second));
  FRESHET_ASSIGN(const std::vector<LineageRow> first, repository.lineage(a));
  FRESHET_ASSIGN(const std::vector<LineageRow> second, repository.lineage(b));
  std::set<VersionName> known;
  for (const LineageRow& row : first) known.insert(row.version);
  const auto common =
      std::ranges::find_if(second, [&known](const LineageRow& row) { return known.contains(row.version); });
  const VersionName name = common == second.end() ? VersionName{} : common->version;
  FRESHET_TRY(program.out.emit({{"version", version_json(name)}}, name.number == 0 ? "none" : to_string(name)));
  return ExitCode::done;
}

void add_pair(CLI::App& command, Arguments& arguments) {
  add_reference(command, "A", arguments.first, "MODEL, MODEL@V or MODEL@ALIAS");
  add_reference(command, "B", arguments.second, "MODEL, MODEL@V or MODEL@ALIAS");
}

}  // namespace

void add_compare(CLI::App& repo, Program& program) {
  auto of_diff = std::make_shared<Arguments>();
  CLI::App& difference = add_repo_command(repo, program, "diff", "what B has that A has not, and the other way round");
  add_pair(difference, *of_diff);
  difference.footer("JSON: layers_added, layers_removed, tensors_changed; each a list of names.");
  act_on_repository(difference, program, of_diff, RepositoryAccess::read, diff);

  auto of_mrca = std::make_shared<Arguments>();
  CLI::App& common = add_repo_command(repo, program, "mrca", "the most recent common ancestor of A and B");
  add_pair(common, *of_mrca);
  common.footer("JSON: {version}, null when their lineages never meet.");
  act_on_repository(common, program, of_mrca, RepositoryAccess::read, mrca);
}

}  // namespace freshet::cli
