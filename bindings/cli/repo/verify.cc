// SPDX-License-Identifier: Apache-2.0
// `freshet repo verify`: reads everything again and compares it with its digests.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct VerifyArguments {
  std::string version;
  bool repair = false;
};

/// A repository that cannot even be opened for damage: there is no version to be named, but there is the damage.
Result<ExitCode> tell_unreadable(Program& program, const Error& error) {
  const Json unknown = {{"version", nullptr}, {"tensor", nullptr}};
  FRESHET_TRY(
      program.out.emit({{"checked_bytes", 0}, {"corrupt", Json::array({unknown})}, {"damaged", error.message()}},
                       "the repository cannot be opened, so nothing is checked"));
  program.out.log(error.message());
  return ExitCode::corrupt;
}

Result<VerifyReport> check(const VersionCatalog& repository, const std::optional<VersionName>& name) {
  ProgressBar bar("verify");
  return repository.verify(name, [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
}

std::string label(const VerifyReport::Corrupt& one) {
  if (one.version.number == 0) return one.record;
  return to_string(one.version) + (one.rank ? format(", rank {}", *one.rank) : "") +
         (one.tensor.empty() ? "" : " " + one.tensor);
}

/// The references that providers had lost.
Status repair(Program& program, Repository& repository, Json& line, std::string& text) {
  FRESHET_ASSIGN(const RepairReport report, repository.repair());
  line["repaired"] = Json::array();
  for (const RepairReport::Row& row : report.repaired) {
    line["repaired"].push_back({{"version", version_json(row.version)},
                                {"tensor", row.tensor},
                                {"tensors", row.tensors},
                                {"provider", row.provider}});
    const std::string more = row.tensors == 1 ? std::string() : format(" and {} more", row.tensors - 1);
    text += format("repaired: {} {}{}: provider {} has its references again\n", to_string(row.version),
                   printable(row.tensor), more, printable(row.provider));
  }
  for (const std::string& note : report.notes) program.out.log(note);
  return {};
}

/// `writable` is the repository, for a repair. The version is resolved first: a name that nobody knows ends the command
/// before the repair, and an alias that is moved meanwhile changes nothing. The repair comes before the check, which
/// then sees the repaired repository.
Result<ExitCode> verify(Program& program, const VersionCatalog& repository, Repository* writable,
                        const VerifyArguments& arguments) {
  std::optional<VersionName> name;
  if (!arguments.version.empty()) {
    FRESHET_ASSIGN(name, repository.resolve(arguments.version));
  }
  Json line = Json::object();
  std::string text;
  if (writable != nullptr) FRESHET_TRY(repair(program, *writable, line, text));
  FRESHET_ASSIGN(const VerifyReport report, check(repository, name));
  line["checked_bytes"] = report.checked_bytes;
  line["corrupt"] = Json::array();
  for (const VerifyReport::Corrupt& one : report.corrupt) {
    Json row = {{"version", version_json(one.version)}, {"tensor", one.tensor}, {"reason", one.reason}};
    if (!one.record.empty()) row["record"] = one.record;
    if (one.rank) row["rank"] = *one.rank;
    line["corrupt"].push_back(std::move(row));
    text += format("corrupt: {}: {}\n", printable(label(one)), printable(one.reason));
  }
  for (const VerifyReport::Unneeded& one : report.unneeded) {
    line["unneeded"].push_back({{"what", one.what}, {"bytes", one.bytes}, {"reason", one.reason}});
    text += format("unneeded: {}, {}: {}\n", printable(one.what), human_bytes(one.bytes), printable(one.reason));
  }
  FRESHET_TRY(program.out.emit(
      line, format("{}{} checked, {} corrupt", text, human_bytes(report.checked_bytes), report.corrupt.size())));
  if (report.corrupt.empty()) return ExitCode::done;
  program.out.log(format("{} are corrupt", report.corrupt.size()));
  return ExitCode::corrupt;
}

}  // namespace

void add_verify(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App& command =
      add_catalog_command(repo, program, "verify", "read everything again, and compare it with its digests");
  command.add_option("MODEL[@V]", arguments->version, "only this version; without @V the newest")
      ->check(reference_check());
  command.add_flag("--repair", arguments->repair, "restore references that providers lost, then verify");
  command.footer(
      "A line of JSON: checked_bytes, corrupt [{version, tensor, reason}], with --repair repaired [{version, tensor,\n"
      "tensors, provider}], perhaps unneeded [{what, bytes, reason}]: undamaged bytes that gc will erase. Exit code 4 "
      "if\n"
      "anything is corrupt. A finding without a version has version null, and record names the record. If damage "
      "prevents\n"
      "opening the repository, version and tensor are null, and damaged names the damage.\n"
      "example: freshet repo verify net@3");
  command.callback([&program, arguments] {
    require_repository(program);
    if (arguments->repair && !program.local.empty()) throw CLI::ValidationError("--repair needs a repository");
    program.action = [&program, arguments]() -> Result<ExitCode> {
      const auto unreadable = [&](const Error& error) -> Result<ExitCode> {
        if (error.code() == Code::corrupt) return tell_unreadable(program, error);
        return fail(error);
      };
      if (arguments->repair) {
        const auto repository = open_repository(
            program.repository, {.access = RepositoryAccess::write, .security = program.repository_security});
        if (!repository) return unreadable(repository.error());
        return verify(program, **repository, repository->get(), *arguments);
      }
      const auto catalog = open_catalog(program);
      if (!catalog) return unreadable(catalog.error());
      return verify(program, **catalog, nullptr, *arguments);
    };
  });
}

}  // namespace freshet::cli
