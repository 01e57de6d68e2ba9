// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "core/base/format.h"
#include "scheduler/policy.h"

namespace freshet::live {
namespace {

constexpr const char* kAbout =
    "Trains a byte-level language model in one process, serves it in others, always fresh, and keeps every version.\n"
    "Starts its own processes (--role=trainer, server, repository, load), restarts one that dies, and ends all of "
    "them\n"
    "with Ctrl-C. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.";

struct Suffix {
  std::string_view text;
  double factor;
};
constexpr Suffix kSuffixes[] = {{"", 0},         {"x", 0},           {"kb", 1e3},           {"mb", 1e6}, {"gb", 1e9},
                                {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"m", 1e6},  {"g", 1e9}};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

void add_run_options(CLI::App& app, RunOptions& run, std::string& scale, std::string& hosts) {
  app.add_option("--seconds", run.seconds,
                 "how long to run once every server has a version (default 30, or no limit with "
                 "--versions)")
      ->check(CLI::Range(0.1, 1e7));
  app.add_option("--versions", run.versions, "stop after N versions")->check(CLI::Range(1, 1000000000));
  app.add_option("--rate", run.rate, "requests a second, sent whether or not answers come")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  app.add_option("--servers", run.servers, "server processes")->check(CLI::Range(1, 16))->capture_default_str();
  app.add_option("--schedule", run.schedule,
                 "when to publish: online, every:N (steps), epoch, fixed, greedy, optimal or failures:MTBF (seconds)")
      ->check([](const std::string& text) {
        const auto policy = parse_policy(text);
        return policy ? std::string() : policy.error().message();
      })
      ->capture_default_str();
  app.add_option("--pace", run.pace, "training steps a second at most; 0: as fast as it goes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--scale", scale,
                 "widen the table: a size of the model like 600MB or 4GB, or a multiple of the 8 MB default")
      ->check([](const std::string& text) {
        const auto bytes = parse_scale(text);
        return bytes ? std::string() : bytes.error().message();
      });
  app.add_option("--text", run.text, "text files to learn (default: the licence texts in /usr/share/common-licenses)");
  app.add_option("--freeze", run.freeze_after,
                 "steps of warm-up, after which the tables of the short n-grams freeze; 0: never")
      ->expected(0, 1)
      ->capture_default_str();
  app.add_option("--seed", run.seed, "of the initial values and of the training positions")->capture_default_str();
  app.add_option("--deadline", run.deadline_ms, "milliseconds after which an unanswered request has failed")
      ->check(CLI::Range(10, 600000))
      ->capture_default_str();
  app.add_option("--report", run.report,
                 "folder for the summary, the plots and the repository (default: live_run_report)");
  app.add_option("--hosts", hosts,
                 "a JSON file that says which role runs on which host (scripts/three_hosts.sh writes one)")
      ->check([](const std::string& path) {
        const auto plans = read_host_plans(path);
        return plans ? std::string() : plans.error().message();
      });
  app.add_flag("--json", run.json, "print the summary as the last line of stdout, and nothing else there");
  app.add_flag("--make-torn-read", run.make_torn_read)->group("");
}

void add_role_options(CLI::App& app, RoleOptions& role) {
  app.add_option("--role", role.role, "what this process is; started by the supervisor")
      ->check(CLI::IsMember({"trainer", "relay", "server", "repository", "load"}));
  app.add_option("--run", role.run_folder, "the run's folder, for a --role");
  app.add_option("--index", role.index)->group("")->check(CLI::Range(0, 15));
  app.add_option("--life", role.life)->group("");
  app.add_option("--versions-left", role.versions_left)->group("");
}

}  // namespace

Result<std::uint64_t> parse_scale(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string suffix = lower(text.substr(static_cast<std::size_t>(end - text.data())));
  if (error == std::errc() && std::isfinite(number)) {
    for (const Suffix& known : kSuffixes) {
      if (known.text != suffix) continue;
      const double bytes = number * (known.factor == 0 ? static_cast<double>(kModelBytesDefault) : known.factor);
      if (bytes >= static_cast<double>(kModelBytesMin) && bytes <= static_cast<double>(kModelBytesMax)) {
        return static_cast<std::uint64_t>(bytes);
      }
      return fail(Code::invalid_argument, format("scale {}: 1MB to 4GiB are possible", text));
    }
  }
  return fail(Code::invalid_argument, format("scale {}: not a size like 600MB or 4GB, nor a multiple like 75", text));
}

ParsedCommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  std::string scale;
  std::string hosts;
  CLI::App app(kAbout, "live_run");
  add_run_options(app, line.run, scale, hosts);
  add_role_options(app, line.role);
  try {
    app.parse(argc, argv);
    if (line.role.role.empty() != line.role.run_folder.empty()) {
      throw CLI::ValidationError("--role", "goes with --run, the folder of a run");
    }
  } catch (const CLI::ParseError& error) {
    return {.exit_code = app.exit(error) == 0 ? 0 : 2};
  }
  if (!hosts.empty()) {
    auto plans = read_host_plans(hosts);  // Checked above, but a file can change.
    if (plans) line.run.hosts = std::move(*plans);
  }
  if (!scale.empty()) line.run.model_bytes = *parse_scale(scale);
  if (app.count("--versions") > 0 && app.count("--seconds") == 0) line.run.seconds = 0;
  return {.command_line = std::move(line)};
}

std::string server_address(const std::string& run_folder, std::uint32_t index) {
  return format("ipc://{}/server-{}", run_folder, index);
}

}  // namespace freshet::live
