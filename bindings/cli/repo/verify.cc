// `freshet repo verify`: reads everything again and compares it with its digests.

#include "bindings/cli/arguments.h"
#include "bindings/cli/progress.h"
#include "bindings/cli/repo/repo.h"
#include "core/format.h"

namespace freshet::cli {
namespace {

struct Arguments {
  std::string version;
};

/// A repository that cannot even be opened for damage: there is no version to be named, but there is the damage.
Result<ExitCode> tell_unreadable(Program& program, const Error& error) {
  const Json unknown = {{"version", nullptr}, {"tensor", nullptr}};
  FRESHET_TRY(
      program.out.emit({{"checked_bytes", 0}, {"corrupt", Json::array({unknown})}, {"damaged", error.message()}},
                       "nothing can be checked"));
  program.out.log(error.message());
  return ExitCode::corrupt;
}

Result<VerifyReport> check(const Repository& repository, const std::optional<VersionName>& name) {
  ProgressBar bar("verify");
  return repository.verify(name, [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
}

Result<ExitCode> verify(Program& program, Repository& repository, const Arguments& arguments) {
  std::optional<VersionName> name;
  if (!arguments.version.empty()) {
    FRESHET_ASSIGN(name, repository.resolve(arguments.version));
  }
  FRESHET_ASSIGN(const VerifyReport report, check(repository, name));
  Json corrupt = Json::array();
  std::string text;
  for (const VerifyReport::Corrupt& one : report.corrupt) {
    corrupt.push_back({{"version", version_json(one.version)}, {"tensor", one.tensor}});
    text += format("corrupt: {} {}: {}\n", to_string(one.version), printable(one.tensor), printable(one.reason));
  }
  FRESHET_TRY(program.out.emit(
      {{"checked_bytes", report.checked_bytes}, {"corrupt", corrupt}},
      format("{}{} checked, {} corrupt tensors", text, human_bytes(report.checked_bytes), report.corrupt.size())));
  if (report.corrupt.empty()) return ExitCode::done;
  program.out.log(format("{} tensors are corrupt", report.corrupt.size()));
  return ExitCode::corrupt;
}

}  // namespace

void add_verify(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command =
      add_repo_command(repo, program, "verify", "read everything again and compare it with its digests");
  command.add_option("MODEL[@V]", arguments->version, "only this version; without @V the newest")
      ->check(reference_check());
  command.footer(
      "A line of JSON: checked_bytes, corrupt [{version, tensor}]. Exit code 4 when anything is corrupt. Where the\n"
      "repository's own records are damaged so that it cannot be opened, version and tensor are null, and damaged "
      "says\n"
      "what is.");
  command.callback([&program, arguments] {
    require_repository(program);
    program.action = [&program, arguments]() -> Result<ExitCode> {
      auto repository = open_repository(program.repository, RepositoryAccess::read, program.repository_security);
      if (!repository && repository.error().code() == Code::corrupt) {
        return tell_unreadable(program, repository.error());
      }
      if (!repository) return fail(std::move(repository).error());
      return verify(program, **repository, *arguments);
    };
  });
}

}  // namespace freshet::cli
