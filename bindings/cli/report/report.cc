// SPDX-License-Identifier: Apache-2.0
// `freshet report`: one page about a model, for people.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/cli/report/page.h"
#include "bindings/cli/report/report_data.h"
#include "bindings/cli/report/serving_now.h"
#include "core/base/format.h"
#include "repo/lineage/lineage_drawing.h"

namespace freshet::cli {
namespace {

struct ReportArguments {
  std::string model;
  std::string file;
  std::string at;
  std::string directory;
  SecurityOptions security;
  std::string provider_key;
  MetricChoice metric;
};

Result<ExitCode> report(Program& program, const ReportArguments& arguments) {
  RepositoryOptions options;
  options.security = {.key_file = arguments.provider_key.empty() ? "" : arguments.security.key_file,
                      .server_key = arguments.provider_key,
                      .open_loopback = arguments.security.open_loopback};
  FRESHET_ASSIGN(const OpenedRepository repository, open_repository(program.repository, options));
  say_if_part(program, repository);
  FRESHET_ASSIGN(ReportData data, read_report_data(*repository, arguments.model, arguments.metric));
  data.json["place"] = printable(program.repository);
  data.json["made_ms"] = system_clock().unix_ns() / kNanosecondsPerMillisecond;
  data.json["serving"] = serving_now(
      {.model = arguments.model, .at = arguments.at, .directory = arguments.directory, .security = arguments.security});

  LineageDrawing drawing{.title = arguments.model};
  if (data.measure.chosen()) {
    drawing.measure = data.measure.name;
    drawing.lower_is_better = data.measure.lower_is_better();
  }
  const std::string page =
      report_page(format("{}: a report of Freshet", arguments.model), lineage_svg(data.rows, drawing), data.json);
  FRESHET_TRY(write_text_file(arguments.file, page));

  const Json& serving = data.json["serving"];
  const bool answered = !serving.contains("error");
  const Json line = {{"model", arguments.model},
                     {"file", arguments.file},
                     {"bytes", page.size()},
                     {"versions", data.rows.size()},
                     {"left_out", data.left_out},
                     {"publisher", answered},
                     {"subscribers", serving["subscribers"].size()}};
  FRESHET_TRY(
      program.out.emit(line, format("{}: {} versions of {}, {}{}", printable(arguments.file), data.rows.size(),
                                    arguments.model, human_bytes(page.size()),
                                    answered ? format("; {} subscribers", serving["subscribers"].size())
                                             : "; no publisher answered: " + serving["error"].get<std::string>())));
  return ExitCode::done;
}

}  // namespace

void add_report(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<ReportArguments>();
  CLI::App& command = *root.add_subcommand("report", "a page about a model: losses, publishes, servers, lineage");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  add_repository_option(command, program);
  command.add_option("-o,--output", arguments->file, "the page to write; a browser opens it")
      ->type_name("FILE.html")
      ->required();
  add_metric_alone(command, arguments->metric);
  add_address(command, arguments->at, AddressUse::connect, "the publisher's address; default: ask the directory");
  add_directory(command, arguments->directory);
  add_security(command, arguments->security, arguments->at, AddressUse::connect);
  command
      .add_option("--provider-key", arguments->provider_key,
                  "for a PLACE that is a provider with keys: its public key, or its NAME.pub")
      ->type_name("KEY")
      ->needs(command.get_option("--keys"));
  command.footer(
      "The page is one file, and fetches nothing. It shows the newest 5000 versions, and the subscribers of this\n"
      "moment if a publisher answers. JSON: model, file, bytes, versions, left_out, publisher, subscribers.\n"
      "example: freshet report demo --repo runs -o demo.html");
  command.callback([&program, arguments] {
    require_repository(program);
    program.action = [&program, arguments] { return report(program, *arguments); };
  });
}

}  // namespace freshet::cli
