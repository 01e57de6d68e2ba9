// SPDX-License-Identifier: Apache-2.0
// `freshet repo retire` and `gc`: letting go of versions, and of the bytes that nobody needs any more.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct RetireArguments {
  std::vector<std::string> versions;
  double wait_seconds = 0;
};

struct GcArguments {
  bool dry_run = false;
};

/// Each by itself: what cannot be retired is told, and the others go.
Result<ExitCode> retire(Program& program, Repository& repository, const RetireArguments& arguments) {
  const RetireOptions options{.wait = seconds(arguments.wait_seconds)};
  ExitCode worst = ExitCode::done;
  for (const std::string& text : arguments.versions) {
    const Result<RetireReport> report = repository.retire(version_of(text), options);
    if (!report) {
      program.out.log(report.error().message());
      if (worst == ExitCode::done) worst = exit_code_of(report.error().code());
      continue;
    }
    FRESHET_TRY(program.out.emit({{"model", report->version.model},
                                  {"version", report->version.number},
                                  {"released_tensors", report->released_tensors},
                                  {"released_bytes", report->released_bytes}},
                                 format("{} retired; {} in {} tensors wait for gc", to_string(report->version),
                                        human_bytes(report->released_bytes), report->released_tensors)));
  }
  return worst;
}

const char* name_of_reason(GcReason reason) {
  switch (reason) {
    case GcReason::retired: return "retired";
    case GcReason::unfinished: return "unfinished";
    case GcReason::inherited: return "inherited";
  }
  return "";
}

Json row_json(const GcRow& row) {
  Json json = {{"version", version_json(row.version)},
               {"fate", row.reason == GcReason::inherited ? "stays" : "goes"},
               {"reason", name_of_reason(row.reason)},
               {"tensors", row.tensors},
               {"bytes", row.bytes}};
  if (row.reason == GcReason::inherited) {
    Json names = Json::array();
    for (const VersionName& name : row.named_by) names.push_back(to_string(name));
    json["named_by"] = names;
    json["named_by_count"] = row.named_by_count;
  }
  return json;
}

Result<GcReport> erase(Repository& repository, const GcOptions& options) {
  ProgressBar bar("gc");
  return repository.gc(options, [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
}

Result<ExitCode> collect(Program& program, Repository& repository, const GcArguments& arguments) {
  FRESHET_ASSIGN(const GcReport report, erase(repository, {.dry_run = arguments.dry_run}));
  Json rows = Json::array();
  std::string text;
  for (const GcRow& row : report.rows) {
    rows.push_back(row_json(row));
    const char* fate = row.reason == GcReason::inherited ? "stays" : arguments.dry_run ? "would go" : "gone";
    text += format("{}: {} in {} tensors, {}\n", fate, human_bytes(row.bytes), row.tensors, printable(why(row)));
  }
  Json json = {{"freed_bytes", report.freed_bytes}, {"live_bytes", report.live_bytes}};
  if (arguments.dry_run) json["dry_run"] = true;
  // What is on the disk now: how close that is to what is alive is what this command is for.
  const Result<RepositoryStat> stat = repository.stat();
  if (stat) {
    json["disk_bytes"] = stat->disk_bytes;
    json["metadata_bytes"] = stat->metadata_bytes;
  }
  json["rows"] = rows;
  if (!report.notes.empty()) json["notes"] = report.notes;
  for (const std::string& note : report.notes) text += printable(note) + "\n";
  const std::string on_disk = stat ? format("; {} on the disk, {} of it metadata", human_bytes(stat->disk_bytes),
                                            human_bytes(stat->metadata_bytes))
                                   : "";
  FRESHET_TRY(program.out.emit(
      json, format("{}{} {}, {} live{}", text, human_bytes(report.freed_bytes),
                   arguments.dry_run ? "would be freed" : "freed", human_bytes(report.live_bytes), on_disk)));
  return ExitCode::done;
}

void add_retire_command(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<RetireArguments>();
  CLI::App& command = add_repo_command(
      repo, program, "retire", "remove versions: their line in the lineage stays, the next gc erases their bytes");
  command.add_option("MODEL@V", arguments->versions, "the versions, each with its number")
      ->required()
      ->check(version_check())
      ->check(CLI::Validator(
          [](const std::string& text) {
            return text.find('@') == std::string::npos ? text + ": name the version, " + text + "@V" : std::string();
          },
          ""));
  command.add_option("--wait", arguments->wait_seconds, "the longest wait for pins to end")
      ->type_name("SECONDS")
      ->check(seconds_check())
      ->capture_default_str();
  command.footer(
      "A line of JSON for each: model, version, released_tensors, released_bytes. Tensors that other versions have\n"
      "inherited stay. example: freshet repo retire net@3 net@4 --wait 10");
  act_on_repository(command, program, arguments, RepositoryAccess::write, retire);
}

void add_gc_command(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<GcArguments>();
  CLI::App& command = add_repo_command(repo, program, "gc", "erase the bytes that no version needs any more");
  command.add_flag("--dry-run", arguments->dry_run,
                   "erase nothing; list the bytes that would go, and the bytes that stay, with the reasons");
  command.footer(
      "A line of JSON: freed_bytes, live_bytes, rows [{version, fate (goes, stays), reason (retired, unfinished,\n"
      "inherited), tensors, bytes, named_by}], one for each version that wrote bytes.\n"
      "example: freshet repo gc --dry-run");
  const auto access = [](const GcArguments& given) {
    return given.dry_run ? RepositoryAccess::read : RepositoryAccess::write;
  };
  act_on_repository(command, program, arguments, access, collect);
}

}  // namespace

void add_retire(CLI::App& repo, Program& program) {
  add_retire_command(repo, program);
  add_gc_command(repo, program);
}

}  // namespace freshet::cli
