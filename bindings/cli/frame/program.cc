// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/program.h"

#include <algorithm>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/standard_streams.h"
#include "core/base/format.h"
#include "core/words/classic_locale.h"

namespace freshet::cli {
namespace {

constexpr const char* kExamples =
    R"(examples:
  freshet publish demo --watch checkpoints/         every file a trainer writes there is a version
  freshet subscribe demo --out models/ --exec 'systemctl reload server # {}'
  freshet archive demo --repo runs                  keeps every version; the place works as usual meanwhile
  freshet top demo
  freshet rollback demo@41                          today's is bad: yesterday's, until `freshet release demo`
  freshet repo --repo ~/models put demo --weights model.safetensors
  freshet repo --repo ~/models get demo@3 --tensors 'encoder.*' -o part.safetensors
  freshet plan losses.csv --warmup 500 --step-ms 12.5 --stall-ms 40 --delivery-ms 90 --infer-ms 5 --inferences 50000
  freshet why 7f3a-1 --journal answers.jsonl        which version gave this answer, and where the version came from
  freshet tier run --config tiers.toml -- python train.py
  freshet doctor

exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 corrupt, 5 unavailable or timed out, 130 interrupted)";

void build_tree(CLI::App& root, Program& program) {
  root.name("freshet");
  root.set_version_flag("--version", "freshet " FRESHET_VERSION);
  root.require_subcommand(1);
  root.footer(kExamples);
  add_json_flag(root, program);
  add_publish(root, program);
  add_subscribe(root, program);
  add_relay(root, program);
  add_archive(root, program);
  add_rollback(root, program);
  add_release(root, program);
  add_commit(root, program);
  add_top(root, program);
  add_replay(root, program);
  add_plan(root, program);
  add_checkpoint(root, program);
  add_keygen(root, program);
  add_repo(root, program);
  add_bisect(root, program);
  add_why(root, program);
  add_report(root, program);
  add_provider(root, program);
  add_tier(root, program);
  add_triton(root, program);
  add_doctor(root, program);
  add_completion(root, program);
  add_complete(root, program);
}

/// The command that the line got to, for "see freshet repo put --help".
std::string command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : app.get_name() + " " + command_of(*chosen.front());
}

/// What is wrong with the line. CLI11 looks for a command before it looks at a word that is none.
std::string wrong_with(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  const std::vector<std::string> words = root.remaining(/*recurse=*/true);
  const bool names_none = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !words.empty() &&
                          app->get_require_subcommand_min() > 0 && !words.front().starts_with('-');
  if (!names_none) return error.what();
  return format("{} has no command \"{}\"", app->get_name(), printable(words.front()));
}

/// Help and version are asked for and go to stdout; everything else that CLI11 throws is wrong usage.
int answer_parse_end(const CLI::App& root, const CLI::ParseError& error, Program& program) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    std::ostringstream text;
    (void)root.exit(error, text, text);
    // Only the footer leaves its last line open.
    const std::string help = text.str() + (text.str().ends_with('\n') ? "" : "\n");
    return program.out.write(help) || program.out.closed() ? 0 : static_cast<int>(ExitCode::failed);
  }
  program.out.log(wrong_with(root, error) + "; see " + command_of(root) + " --help");
  return static_cast<int>(ExitCode::usage);
}

}  // namespace

int run(int argc, const char* const* argv) {
  if (const Status held = hold_standard_streams(); !held) {
    Output().log(held.error().message());
    return static_cast<int>(exit_code_of(held.error().code()));
  }
  const Interrupt interrupt;
  Program program{.interrupt = interrupt};
  CLI::App root("Keeps served models fresh: streams versions from a trainer to servers, and stores each version.");
  build_tree(root, program);
  try {
    const ClassicLocale locale;  // CLI11 reads numbers with strtold().
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return answer_parse_end(root, error, program);
  }
  const Result<ExitCode> ended = program.action();
  if (program.out.closed()) return static_cast<int>(ExitCode::done);
  if (ended && *ended == ExitCode::done && program.out.lost_lines() > 0) return static_cast<int>(ExitCode::failed);
  if (ended) return static_cast<int>(*ended);
  if (ended.error().code() != Code::cancelled) program.out.log(ended.error().message());
  return static_cast<int>(exit_code_of(ended.error().code()));
}

}  // namespace freshet::cli
