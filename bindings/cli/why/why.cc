// SPDX-License-Identifier: Apache-2.0
// `freshet why`: which version gave an answer, how far behind it was, and where the version came from.

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/serving/journal.h"
#include "bindings/serving/journal_search.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::cli {
namespace {

struct WhyArguments {
  std::string request;
  std::string journal;
};

/// What a repository knows of the version that gave the answer.
struct Origin {
  std::vector<LineageRow> lineage;  ///< Newest first.
  std::vector<ContributorRow> writers;
};

std::string utc_text(std::int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts = {};
  char text[32] = {};
  if (::gmtime_r(&seconds, &parts) == nullptr || std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts) == 0) {
    return format("{} ns after 1970", unix_ns);
  }
  return format("{}.{:03}Z", text, unix_ns / kNanosecondsPerMillisecond % 1000);
}

std::string shell_quoted(const std::string& text) {
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [](const unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_@%+=:,./-").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// From the oldest ancestor that can still be tried to the version itself; empty if there is none.
std::string bisect_line(const std::string& place, const std::vector<LineageRow>& lineage) {
  if (lineage.size() < 2 || lineage.front().retired) return "";
  const auto oldest =
      std::find_if(lineage.rbegin(), lineage.rend(), [](const LineageRow& row) { return !row.retired; });
  const VersionName& bad = lineage.front().version;
  if (oldest->version == bad) return "";
  return format("freshet bisect {} --repo {} --good {} --bad {} --exec './eval.sh {{}}'", shell_quoted(bad.model),
                shell_quoted(place), shell_quoted(to_string(oldest->version)), shell_quoted(to_string(bad)));
}

Json metrics_json(const Metrics& metrics) {
  Json object = Json::object();
  for (const auto& [name, value] : metrics) object[name] = std::isfinite(value) ? Json(value) : Json();
  return object;
}

Json writers_json(const std::vector<ContributorRow>& writers) {
  Json all = Json::array();
  for (const ContributorRow& writer : writers) {
    all.push_back({{"version", version_json(writer.version)},
                   {"tensors", writer.tensor_count},
                   {"bytes", writer.bytes},
                   {"names", writer.tensors}});
  }
  return all;
}

std::string writers_text(const std::vector<ContributorRow>& writers) {
  std::string text;
  for (const ContributorRow& writer : writers) {
    text +=
        format("{}{} tensors ({}) by {}", text.empty() ? "" : ", ", writer.tensor_count, human_bytes(writer.bytes),
               writer.version.number == 0 ? "a version that the repository does not know" : to_string(writer.version));
  }
  return text.empty() ? "none" : text;
}

/// A journal's texts are untrusted: each stays within its line.
std::string answer_text(const std::string& request, const serving::JournalSearch& found) {
  const serving::JournalAnswer& answer = *found.newest;
  std::string text = format("request {}: {} gave the answer at {}", request, to_string(answer.version),
                            utc_text(answer.served_unix_ns));
  text += answer.versions_behind == 0
              ? "; the server knew no newer version"
              : format("; the newest version that the server knew was {} ahead", answer.versions_behind);
  if (found.answers > 1) text += format("\n{} answers have this id; this is the last one", found.answers);
  text += format("\nstep: {}\nmetrics:", answer.step);
  for (const auto& [name, value] : answer.metrics) text += format(" {}={}", printable(name), value);
  if (answer.metrics.empty()) text += " none";
  if (answer.left_out > 0) text += format(" and {} more that the journal had no room for", answer.left_out);
  text +=
      format("\npublished because: {}", answer.schedule.empty() ? "not known: the publisher told no schedule's reason"
                                                                : printable(answer.schedule));
  return text;
}

/// What the repository says, or why it says nothing (`missing`).
Result<std::optional<Origin>> origin_of(const Program& program, const serving::JournalAnswer& answer,
                                        std::string& missing) {
  if (program.repository.empty()) {
    missing = "give --repo FOLDER or set FRESHET_REPO";
    return std::nullopt;
  }
  FRESHET_ASSIGN(
      const OpenedRepository repository,
      open_repository(program.repository, {.access = RepositoryAccess::read, .security = program.repository_security}));
  say_if_part(program, repository);
  const Result<VersionRecord> record = repository->get(answer.version);
  if (!record && record.error().code() == Code::not_found) {
    missing = record.error().message();
    return std::nullopt;
  }
  if (!record) return fail(record.error());
  const std::uint64_t step = record->manifest.step;
  if (step != 0 && answer.step != 0 && step != answer.step) {
    missing = format("{} of {} is of step {}, and the answer's version was of step {}: it is another run's",
                     to_string(answer.version), program.repository, step, answer.step);
    return std::nullopt;
  }
  Origin origin;
  FRESHET_ASSIGN(origin.lineage, repository->lineage(answer.version));
  FRESHET_ASSIGN(origin.writers, repository->contributors(answer.version));
  return origin;
}

Result<serving::JournalSearch> find_answer(Program& program, const WhyArguments& arguments) {
  FRESHET_ASSIGN(serving::JournalSearch found, serving::search_journal(arguments.journal, arguments.request));
  if (found.lines == 0 && found.damaged_lines > 0) {
    return fail(Code::corrupt, format("{} is not a journal, or is damaged: none of its {} lines is whole",
                                      arguments.journal, found.damaged_lines));
  }
  const std::string damage =
      found.damaged_lines == 0 ? "" : format("{} damaged lines were passed over", found.damaged_lines);
  if (!found.newest) {
    return fail(Code::not_found, format("no answer to request {} stands in the {} lines of {}{}{}", arguments.request,
                                        found.lines, arguments.journal, damage.empty() ? "" : "; ", damage));
  }
  if (!damage.empty()) program.out.log(format("{}: {}", arguments.journal, damage));
  return found;
}

Result<ExitCode> why(Program& program, const WhyArguments& arguments) {
  FRESHET_ASSIGN(const serving::JournalSearch found, find_answer(program, arguments));
  const serving::JournalAnswer& answer = *found.newest;
  std::string missing;
  FRESHET_ASSIGN(const std::optional<Origin> origin, origin_of(program, answer, missing));
  const std::string bisect = origin ? bisect_line(program.repository, origin->lineage) : "";

  Json line = {{"request", arguments.request},
               {"model", answer.version.model},
               {"version", answer.version.number},
               {"served_unix_ns", answer.served_unix_ns},
               {"versions_behind", answer.versions_behind},
               {"step", answer.step},
               {"metrics", metrics_json(answer.metrics)},
               {"lineage", origin ? lineage_json(origin->lineage) : Json()},
               {"writers", origin ? writers_json(origin->writers) : Json()},
               {"schedule", answer.schedule.empty() ? Json() : Json(answer.schedule)},
               {"bisect", bisect.empty() ? Json() : Json(bisect)},
               {"answers", found.answers},
               {"damaged_lines", found.damaged_lines}};
  if (!origin) line["no_lineage"] = missing;
  std::string text = answer_text(arguments.request, found);
  if (!origin) {
    text += "\nlineage: not known: " + missing;
  } else {
    text += format("\ntensors: {}\n\n{}\n\n", writers_text(origin->writers), lineage_table(origin->lineage));
    text += bisect.empty() ? "bisect: no ancestor can be tried" : "go on with: " + bisect;
  }
  FRESHET_TRY(program.out.emit(line, text));
  return ExitCode::done;
}

}  // namespace

void add_why(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<WhyArguments>();
  CLI::App& command = *root.add_subcommand("why", "which version gave an answer, and where the version came from");
  add_json_flag(command, program);
  add_repository_option(command, program);
  add_client_keys(command, program.repository_security);
  command.add_option("REQUEST", arguments->request, "the request's id, as its answer's header x-request-id has it")
      ->required()
      ->check(CLI::Validator(
          [](std::string& text) {
            const Status checked = check_label("a request's id", text, serving::kRequestBytesMax);
            return checked ? std::string() : checked.error().message();
          },
          "", "request"));
  command.add_option("--journal", arguments->journal, "the server's journal; its predecessors PATH.1 … are read too")
      ->type_name("PATH")
      ->required();
  command.footer(
      "JSON: request, model, version, served_unix_ns, versions_behind, step, metrics, lineage (as `repo lineage`; "
      "null\n"
      "without a repository that has the version, and no_lineage says why), writers [{version, tensors, bytes, "
      "names}],\n"
      "schedule (the scheduled publisher's reason, or null), bisect (the command that goes on, or null), answers,\n"
      "damaged_lines.\n"
      "example: freshet why 7f3a-1 --journal answers.jsonl --repo runs");
  command.callback([&program, arguments] {
    const char* const environment = std::getenv("FRESHET_REPO");
    if (program.repository.empty() && environment != nullptr) program.repository = environment;
    program.action = [&program, arguments]() -> Result<ExitCode> { return why(program, *arguments); };
  });
}

}  // namespace freshet::cli
