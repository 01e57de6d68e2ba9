// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/host/memory_room.h"
#include "examples/live_run/model/corpus.h"
#include "examples/live_run/report/plots.h"
#include "examples/live_run/signals.h"
#include "examples/live_run/supervisor.h"
#include "transport/directory/directory.h"

namespace freshet::live {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitInterrupted = 130;
constexpr std::size_t kReasonsShown = 5;

std::string introduction(const RunOptions& options, const Corpus& corpus, const ReportFolder& report) {
  return format(
      "live run: a model of {}, {} of text to learn and {} held out, {} servers, {} requests/s, publishing {}\n"
      "report folder: {}\n"
      "look on from another terminal: FRESHET_RUN_DIR={} freshet top {}",
      people_bytes(options.model_bytes), people_bytes(corpus.training.size()), people_bytes(corpus.held_out.size()),
      options.servers, options.rate, options.schedule, report.path(), std::getenv("FRESHET_RUN_DIR"), kModelName);
}

Status write_summary(const nlohmann::json& summary, const std::string& folder) {
  const std::string path = folder + "/summary.json";
  std::ofstream file(path);
  file << summary.dump(2) << '\n';
  file.close();
  if (!file) return fail(Code::io_error, format("{}: cannot be written", path));
  return {};
}

/// The closing words: the table, the report, and what was wrong.
Status close(const RunOptions& options, const Supervisor& supervisor, const ReportFolder& report, Progress& progress) {
  const Tally& tally = supervisor.tally();
  Summary summary = tally.summary();
  summary.restarts = supervisor.restarts();
  summary.seconds = supervisor.seconds();
  const nlohmann::json line = to_json(summary);
  progress.say(format("\n{}", to_table(summary)));
  for (std::size_t i = 0; i < std::min(kReasonsShown, tally.torn_reasons.size()); ++i) {
    progress.say(format("torn read: {}", tally.torn_reasons[i]));
  }
  for (std::size_t i = 0; i < std::min(kReasonsShown, tally.errors.size()); ++i)
    progress.say(format("error: {}", tally.errors[i]));
  if (!tally.repository_error.empty()) progress.say("the repository could not keep up: " + tally.repository_error);
  const Status plotted = draw_plots(tally, report.path());
  if (!plotted) progress.say("no plots: " + plotted.error().message());
  FRESHET_TRY(write_summary(line, report.path()));
  progress.say(
      format("report: {}/summary.json{}\n"
             "the versions kept: freshet repo ls --repo {}",
             report.path(), plotted ? ", loss.svg, latency.svg, bytes.svg" : "", report.repository()));
  if (options.json) {
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
  return {};
}

/// What the trainer holds of a model: the model, the optimizer's state, and the arena of versions. The rest of the
/// roles map that arena.
constexpr double kModelCopies = 3.4;

void warn_of_little_memory(const RunOptions& options, Progress& progress) {
  const auto available = available_memory_bytes();
  const auto needed = static_cast<std::uint64_t>(kModelCopies * static_cast<double>(options.model_bytes));
  if (!available || needed <= *available) return;
  progress.say(format("warning: this takes about {} of memory, and {} are available", people_bytes(needed),
                      people_bytes(*available)));
}

/// The roles of two runs must not meet: each run has a host directory of its own, unless the user named one.
void choose_host_directory(const std::string& run_folder) {
  if (std::getenv("FRESHET_RUN_DIR") != nullptr) return;
  ::setenv("FRESHET_RUN_DIR", (run_folder + "/host").c_str(), 1);
  ::setenv("XDG_STATE_HOME", (run_folder + "/state").c_str(), 1);
}

/// Said once and at once: each role would find it again, and be started again in vain.
Status check_host_directory() {
  const auto opened = open_directory("");
  if (opened || opened.error().code() == Code::unavailable) return {};
  return fail(Error(opened.error()).with_context("no role could start"));
}

Result<int> run_guarded(RunOptions options, Progress& progress) {
  if (options.text.empty()) {
    FRESHET_ASSIGN(options.text, default_text_files());
  }
  FRESHET_ASSIGN(const Corpus corpus, read_corpus(options.text));
  FRESHET_ASSIGN(const ReportFolder report, ReportFolder::open(options.report));
  FRESHET_ASSIGN(const RunFolder run_folder, RunFolder::create());
  FRESHET_TRY(write_config(run_folder.path(), {.options = options, .repository = report.repository()}));
  choose_host_directory(run_folder.path());
  FRESHET_TRY(check_host_directory());
  count_interrupts();
  progress.say(introduction(options, corpus, report));
  warn_of_little_memory(options, progress);

  Supervisor supervisor(options, run_folder.path(), progress);
  const Status ran = supervisor.run();
  FRESHET_TRY(close(options, supervisor, report, progress));
  FRESHET_TRY(ran);
  if (interrupt_count() > 0) return kExitInterrupted;
  return supervisor.tally().torn_reads() > 0 ? kExitFailed : 0;
}

}  // namespace

int supervise(RunOptions options) {
  Progress progress(options.json ? stderr : stdout);
  const auto code = run_guarded(std::move(options), progress);
  if (code) return *code;
  std::fprintf(stderr, "live_run: %s\n", printable(code.error().message()).c_str());
  return interrupt_count() > 0 ? kExitInterrupted : kExitFailed;
}

}  // namespace freshet::live
