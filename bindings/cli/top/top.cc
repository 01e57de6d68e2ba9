// SPDX-License-Identifier: Apache-2.0
// `freshet top`: the models that are published here, or one publisher and its subscribers, live.

#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/top/sample.h"
#include "bindings/cli/top/screen.h"
#include "bindings/cli/top/top_metrics.h"
#include "core/base/format.h"
#include "transport/directory/directory.h"

namespace freshet::cli {
namespace {

struct TopArguments {
  TopPlace place;
  bool once = false;
  bool metrics = false;
  double interval = 1;
};

constexpr Duration kIntervalMin = std::chrono::milliseconds(10);

/// A sample and when it was taken, for rates.
struct Seen {
  Json stat;
  Time at;
};

std::string rate(const Json& stat, const std::optional<Seen>& before, Time now) {
  if (!before || now <= before->at) return "";
  const double elapsed = std::chrono::duration<double>(now - before->at).count();
  const std::uint64_t versions =
      stat_number(stat, "versions_published") - stat_number(before->stat, "versions_published");
  const std::uint64_t bytes = stat_number(stat, "bytes_published") - stat_number(before->stat, "bytes_published");
  // A restarted publisher counts anew.
  if (versions > stat_number(stat, "versions_published")) return "";
  return format("  ({:.1f} versions/s, {}/s)", static_cast<double>(versions) / elapsed,
                human_bytes(static_cast<std::uint64_t>(static_cast<double>(bytes) / elapsed)));
}

std::string place_text(const TopPlace& place) {
  if (!place.at.empty()) return place.at;
  const auto directory = open_directory(place.directory);
  return directory ? (*directory)->text() : place.directory;
}

class TopView {
 public:
  TopView(Program& program, const TopArguments& arguments)
      : program_(program), arguments_(arguments), redraws_(::isatty(STDOUT_FILENO) != 0 && !arguments.once) {}

  /// One sample, shown. In the live view a publisher or a directory that is away is a line, not an end.
  Status show() {
    const bool is_one = !arguments_.place.model.empty();
    const Status shown = is_one ? show_model() : show_models();
    if (shown || arguments_.once || !may_come_back(shown.error())) return shown;
    return show_absence(shown.error().message());
  }

 private:
  static bool may_come_back(const Error& error) {
    return error.code() == Code::not_found || error.code() == Code::unavailable || error.code() == Code::timed_out;
  }

  Status show_model() {
    FRESHET_ASSIGN(const Json stat, sample_model(arguments_.place));
    last_absence_.clear();
    const Time now = system_clock().now();
    const std::string rates = rate(stat, before_, now);
    before_ = Seen{.stat = stat, .at = now};
    if (program_.out.json) return program_.out.emit(stat, "");
    return draw(model_screen(stat, rates));
  }

  Status show_models() {
    FRESHET_ASSIGN(const std::vector<Json> models, sample_all(arguments_.place));
    last_absence_.clear();
    for (std::size_t i = 0; program_.out.json && i < models.size(); ++i) FRESHET_TRY(program_.out.emit(models[i], ""));
    if (program_.out.json) return {};
    return draw(models.empty() ? format("nobody publishes in {}\n", place_text(arguments_.place))
                               : models_screen(models));
  }

  Status show_absence(const std::string& reason) {
    before_.reset();
    if (redraws_ && !program_.out.json) return draw(printable(reason) + "\n");
    if (reason != last_absence_) program_.out.log(reason);
    last_absence_ = reason;
    return {};
  }

  Status draw(const std::string& text) { return redraws_ ? program_.out.redraw(text) : program_.out.write(text); }

  Program& program_;
  const TopArguments& arguments_;
  bool redraws_;
  std::optional<Seen> before_;
  std::string last_absence_;
};

Result<ExitCode> show_metrics(Program& program, const TopArguments& arguments) {
  if (program.out.json) {
    program.out.log("top: --metrics prints Prometheus' text, and --json prints JSON; give one of them");
    return ExitCode::usage;
  }
  std::vector<Json> models;
  if (arguments.place.model.empty()) {
    FRESHET_ASSIGN(models, sample_all(arguments.place));
  } else {
    FRESHET_ASSIGN(models.emplace_back(), sample_model(arguments.place));
  }
  FRESHET_TRY(program.out.write(metrics_text(models)));
  return ExitCode::done;
}

Result<ExitCode> top(Program& program, const TopArguments& arguments) {
  if (arguments.metrics) return show_metrics(program, arguments);
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = !arguments.once;
  TopView view(program, arguments);
  for (Time next = system_clock().now();; next = std::max(next, system_clock().now())) {
    FRESHET_TRY(view.show());
    if (arguments.once) return ExitCode::done;
    next += std::max(seconds(arguments.interval), kIntervalMin);
    if (program.interrupt.wait_until(next)) return ExitCode::interrupted;
  }
}

}  // namespace

void add_top(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App& command = *root.add_subcommand("top", "the published models, or one publisher and its subscribers, live");
  add_json_flag(command, program);
  command.add_option("MODEL", arguments->place.model, "show this one, with its last versions and its subscribers")
      ->check(model_check());
  command.add_flag("--once", arguments->once, "print once, and end");
  command.add_flag("--metrics", arguments->metrics, "print once in Prometheus' text format, and end");
  add_seconds(command, "--interval", arguments->interval, "the time between two updates")->capture_default_str();
  add_address(command, arguments->place.at, AddressUse::connect, "the publisher's address; default: ask the directory");
  add_directory(command, arguments->place.directory);
  add_security(command, arguments->place.security, arguments->place.at, AddressUse::connect);
  command.footer(
      "Without MODEL, a line for each model; one whose publisher does not answer has model and error alone.\n"
      "A line of JSON per update: model, newest, model_bytes, versions_published, versions_skipped, bytes_published,\n"
      "arena_bytes, arena_free_bytes, locked_bytes, device_memory_bytes, device_memory_free_bytes,\n"
      "device_memory_why, subscribers [{label, pid, every, silent, serving, held,\n"
      "queued_versions, gaps, channel, channel_why, serves, member, epoch, staged, failed, behind, failures,\n"
      "staleness_ms}],\n"
      "versions [{version, step, metrics, published_ms, file}], the last ones,\n"
      "current {epoch, version, hold, kept}, candidate, activation_failure, mixed_ms, directory (its state).\n"
      "examples: freshet top\n"
      "          freshet top demo");
  act_with(command, program, arguments, top);
}

}  // namespace freshet::cli
