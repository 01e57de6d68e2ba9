// SPDX-License-Identifier: Apache-2.0
// `freshet repo get`: a version, or some of its tensors, as a safetensors file.

#include <fnmatch.h>

#include <memory>
#include <set>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/repo/tensor_feed.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/safetensors/safetensors.h"
#include "core/safetensors/tensors_that_come.h"

namespace freshet::cli {
namespace {

struct GetArguments {
  std::string version;
  std::vector<std::string> globs;
  std::string file;
};

/// The tensors that GLOB names: the one with this very name, else those with matching names. JAX' names look like
/// patterns: "['params']['w']".
std::vector<std::uint32_t> named_like(const Architecture& architecture, const std::string& glob) {
  if (const auto equal = architecture.tensor_named(glob)) return {*equal};
  const auto specs = architecture.tensors();
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < specs.size(); ++i) {
    if (::fnmatch(glob.c_str(), specs[i].name.c_str(), 0) == 0) found.push_back(i);
  }
  return found;
}

/// In the version's order; not_found for a GLOB that names none.
Result<std::vector<std::uint32_t>> chosen_of(const VersionRecord& record, const std::vector<std::string>& globs) {
  const Architecture& architecture = *record.manifest.architecture;
  std::set<std::uint32_t> chosen;
  for (const std::string& glob : globs) {
    const std::vector<std::uint32_t> found = named_like(architecture, glob);
    if (found.empty()) {
      return fail(Code::not_found, format("{}: none of its {} tensors is named like {}",
                                          to_string(record.manifest.name), architecture.tensors().size(), shown(glob)));
    }
    chosen.insert(found.begin(), found.end());
  }
  if (globs.empty()) {
    for (std::uint32_t i = 0; i < architecture.tensors().size(); ++i) chosen.insert(chosen.end(), i);
  }
  return std::vector<std::uint32_t>(chosen.begin(), chosen.end());
}

Result<ExitCode> get(Program& program, Repository& repository, const GetArguments& arguments) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(asked));
  const VersionName& name = record.manifest.name;
  if (!record.has_weights) {
    return fail(
        Code::failed_precondition,
        format("{} has no weights: it is a graph that was never trained; there is no file to write", to_string(name)));
  }
  FRESHET_ASSIGN(const std::vector<std::uint32_t> chosen, chosen_of(record, arguments.globs));
  // A signal does not leave a half-written file beside the target.
  const Interrupt::Deferral deferral;
  FRESHET_ASSIGN(std::unique_ptr<TensorFeed> feed, TensorFeed::start(repository, record, chosen));
  const auto is_read = [&](std::size_t view) { return feed->wait_for(view, program.interrupt); };
  Status written = write_safetensors(arguments.file, feed->views(), record.manifest.tags, true, is_read);
  FRESHET_TRY(feed->failure());
  if (!written && written.error().code() == Code::cancelled) return ExitCode::interrupted;
  FRESHET_TRY(as_output_error(std::move(written), arguments.file));
  const std::uint64_t bytes = feed->bytes();
  feed.reset();  // Its progress bar is gone before the answer is printed.
  FRESHET_TRY(program.out.emit({{"model", name.model},
                                {"version", name.number},
                                {"file", arguments.file},
                                {"tensors", chosen.size()},
                                {"bytes", bytes}},
                               format("{}  {} tensors, {} -> {}", to_string(name), chosen.size(), human_bytes(bytes),
                                      printable(arguments.file))));
  return program.interrupt.requested() ? ExitCode::interrupted : ExitCode::done;
}

}  // namespace

void add_get(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<GetArguments>();
  CLI::App& command = add_repo_command(repo, program, "get", "write a version as a safetensors file");
  add_reference(command, "MODEL[@V]", arguments->version, "the version; without @V the newest");
  command
      .add_option("--tensors", arguments->globs,
                  "only the tensor of this name, or those with matching names; repeatable; each GLOB must name one")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  command.add_option("-o,--output", arguments->file, "the file; written whole or not at all")
      ->type_name("F.safetensors")
      ->required();
  command.footer(
      "The version's tags become the file's __metadata__. A line of JSON: model, version, file, tensors, bytes.\n"
      "example: freshet repo get net@3 --tensors 'encoder.*' -o encoder.safetensors");
  act_on_repository(command, program, arguments, RepositoryAccess::read, get);
}

}  // namespace freshet::cli
