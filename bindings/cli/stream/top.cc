// SPDX-License-Identifier: Apache-2.0
// `freshet top`: a publisher and its subscribers, live.

#include <sys/ioctl.h>
#include <unistd.h>

#include <optional>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "bindings/cli/stream/top_metrics.h"
#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/ask/ask_stat.h"

namespace freshet::cli {
namespace {

struct TopArguments {
  std::string model;
  std::string at;
  std::string directory;
  SecurityOptions security;
  bool once = false;
  bool metrics = false;
  double interval = 1;
};

constexpr Duration kStatPatience = std::chrono::seconds(2);
constexpr Duration kIntervalMin = std::chrono::milliseconds(10);

std::uint64_t number(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_number_unsigned() ? member->get<std::uint64_t>() : 0;
}

std::string text(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

bool flag(const Json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_boolean() && member->get<bool>();
}

/// Of a relay also how many behind it do not serve what it serves; of a subscriber that writes files, whether they are
/// those of an older version.
std::string state_text(const Json& subscriber) {
  if (flag(subscriber, "silent")) return "silent";
  const std::uint64_t behind = number(subscriber, "behind");
  if (behind == 0) return "ok";
  return text(subscriber, "serves").empty() ? "its files are older" : format("{} behind it", behind);
}

Json list_at(const Json& object, const char* key) {
  const auto member = object.is_object() ? object.find(key) : object.end();
  return member != object.end() && member->is_array() ? *member : Json::array();
}

/// As it is shown. A publisher of an older release does not tell it.
void put_staleness_in_ms(Json& subscriber) {
  if (!subscriber.is_object() || !subscriber.contains("staleness_ns")) return;
  subscriber["staleness_ms"] = static_cast<double>(number(subscriber, "staleness_ns")) / 1e6;
  subscriber.erase("staleness_ns");
}

/// The model's part of the answer, which is the publisher's word and so looked at before it is used.
Result<Json> sample(const TopArguments& arguments) {
  FRESHET_ASSIGN(const std::string answer, ask_stat({.model = arguments.model,
                                                     .at = arguments.at,
                                                     .directory = arguments.directory,
                                                     .security = arguments.security},
                                                    kStatPatience));
  Result<JsonDocument> parsed = parse_json(answer);
  if (!parsed) return fail(Code::corrupt, format("the publisher's answer: {}", parsed.error().message()));
  for (Json model : list_at(*parsed, "models")) {
    if (!model.is_object() || text(model, "model") != arguments.model) continue;
    model["mixed_ms"] = static_cast<double>(number(model, "mixed_ns")) / 1e6;
    model.erase("mixed_ns");
    if (const auto subscribers = model.find("subscribers"); subscribers != model.end() && subscribers->is_array()) {
      for (Json& one : *subscribers) put_staleness_in_ms(one);
    }
    return model;
  }
  return fail(Code::not_found, format("{} is not published there", arguments.model));
}

/// A sample and when it was taken, for rates.
struct Seen {
  Json stat;
  Time at;
};

std::string rate(const Json& stat, const std::optional<Seen>& before, Time now) {
  if (!before || now <= before->at) return "";
  const double elapsed = std::chrono::duration<double>(now - before->at).count();
  const std::uint64_t versions = number(stat, "versions_published") - number(before->stat, "versions_published");
  const std::uint64_t bytes = number(stat, "bytes_published") - number(before->stat, "bytes_published");
  // A restarted publisher counts anew.
  if (versions > number(stat, "versions_published")) return "";
  return format("  ({:.1f} versions/s, {}/s)", static_cast<double>(versions) / elapsed,
                human_bytes(static_cast<std::uint64_t>(static_cast<double>(bytes) / elapsed)));
}

/// What a member of the group has staged, or why it could not.
std::string staged_text(const Json& one) {
  if (!flag(one, "member")) return "";
  if (const std::string failed = text(one, "failed"); !failed.empty()) return "failed: " + failed;
  return number(one, "staged") == 0 ? "-" : format("@{}", number(one, "staged"));
}

/// "ucx: on the same host; shm avoided for now, …" without the channel's name, which stands in a column of its own.
std::string why_text(const Json& one) {
  const std::string why = text(one, "channel_why");
  const std::string name = text(one, "channel") + ": ";
  return why.starts_with(name) ? why.substr(name.size()) : why;
}

/// What is current, if that is not simply the newest.
std::string current_text(const Json& stat) {
  const auto pair = stat.find("current");
  if (pair == stat.end() || !pair->is_object()) return "";
  std::string line;
  if (number(*pair, "version") != number(stat, "newest") || flag(*pair, "hold") || number(*pair, "epoch") != 0) {
    line = format("@{} is current{}, epoch {}", number(*pair, "version"), flag(*pair, "hold") ? " and held" : "",
                  number(*pair, "epoch"));
  }
  const bool waits = flag(*pair, "hold") && pair->contains("kept") && !flag(*pair, "kept");
  if (waits) line += format(", but not kept here: new subscribers wait for `freshet release {}`", text(stat, "model"));
  if (number(stat, "candidate") != 0) {
    line += format("{}@{} is being staged", line.empty() ? "" : "; ", number(stat, "candidate"));
  }
  if (const std::string failure = text(stat, "activation_failure"); !failure.empty()) {
    line += (line.empty() ? "" : "; ") + failure;
  }
  return line.empty() ? line : printable(line) + "\n";
}

std::string subscribers_text(const Json& stat) {
  const Json subscribers = list_at(stat, "subscribers");
  if (subscribers.empty()) return "no subscribers";
  const std::uint64_t newest = number(stat, "newest");
  std::vector<std::vector<std::string>> rows = {{"SUBSCRIBER", "PID", "MODE", "CHANNEL", "SERVING", "BEHIND", "HELD",
                                                 "QUEUED", "GAPS", "STAGED", "STATE", "SERVES", "WHY THIS CHANNEL"}};
  for (const Json& one : subscribers) {
    if (!one.is_object()) continue;
    const std::uint64_t serving = number(one, "serving");
    rows.push_back({text(one, "label"), format("{}", number(one, "pid")), flag(one, "every") ? "every" : "latest",
                    text(one, "channel"), serving == 0 ? "-" : format("@{}", serving),
                    format("{}", newest - std::min(newest, serving)), format("{}", list_at(one, "held").size()),
                    format("{}", number(one, "queued_versions")), format("{}", number(one, "gaps")), staged_text(one),
                    state_text(one), text(one, "serves"), printable(why_text(one))});
  }
  return table(rows);
}

/// A line about versions in a GPU's memory; nothing where there are none.
std::string device_text(const Json& stat) {
  const std::string why = text(stat, "device_memory_why");
  const std::uint64_t bytes = number(stat, "device_memory_bytes");
  if (bytes == 0 && why.empty()) return "";
  return format("GPU memory {} ({} free){}\n", human_bytes(bytes),
                human_bytes(number(stat, "device_memory_free_bytes")),
                why.empty() ? "" : "; the last version is in host memory alone: " + printable(why));
}

std::string screen(const std::string& model, const Json& stat, const std::string& rates) {
  return format("{}@{}  {}\n{}{} versions, {} published, {} skipped{}\narena {} ({} free, {} locked)\n{}\n{}\n", model,
                number(stat, "newest"), human_bytes(number(stat, "model_bytes")), current_text(stat),
                number(stat, "versions_published"), human_bytes(number(stat, "bytes_published")),
                number(stat, "versions_skipped"), rates, human_bytes(number(stat, "arena_bytes")),
                human_bytes(number(stat, "arena_free_bytes")), human_bytes(number(stat, "locked_bytes")),
                device_text(stat), subscribers_text(stat));
}

class TopView {
 public:
  TopView(Program& program, const TopArguments& arguments)
      : program_(program), arguments_(arguments), redraws_(::isatty(STDOUT_FILENO) != 0 && !arguments.once) {}

  /// One sample, shown. In the live view a publisher that is away is a line, not an end.
  Status show() {
    const Result<Json> stat = sample(arguments_);
    if (!stat && (arguments_.once || !may_come_back(stat.error()))) return fail(stat.error());
    if (!stat) return show_absence(stat.error().message());
    last_absence_.clear();
    const Time now = system_clock().now();
    const std::string rates = rate(*stat, before_, now);
    before_ = Seen{.stat = *stat, .at = now};
    if (program_.out.json) return program_.out.emit(*stat, "");
    return draw(screen(arguments_.model, *stat, rates));
  }

 private:
  static bool may_come_back(const Error& error) {
    return error.code() == Code::not_found || error.code() == Code::unavailable || error.code() == Code::timed_out;
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
  FRESHET_ASSIGN(const Json stat, sample(arguments));
  FRESHET_TRY(program.out.write(metrics_text(arguments.model, stat)));
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
  CLI::App& command = *root.add_subcommand("top", "a publisher and its subscribers, live");
  add_json_flag(command, program);
  add_model(command, arguments->model);
  command.add_flag("--once", arguments->once, "print once, and end");
  command.add_flag("--metrics", arguments->metrics, "print once in Prometheus' text format, and end");
  add_seconds(command, "--interval", arguments->interval, "the time between two updates")->capture_default_str();
  add_address(command, arguments->at, AddressUse::connect, "the publisher's address; default: ask the directory");
  add_directory(command, arguments->directory);
  add_security(command, arguments->security, arguments->at, AddressUse::connect);
  command.footer(
      "A line of JSON per update: model, newest, model_bytes, versions_published, versions_skipped, bytes_published,\n"
      "arena_bytes, arena_free_bytes, locked_bytes, device_memory_bytes, device_memory_free_bytes,\n"
      "device_memory_why, subscribers [{label, pid, every, silent, serving, held,\n"
      "queued_versions, gaps, channel, channel_why, serves, member, epoch, staged, failed, behind, failures,\n"
      "staleness_ms}],\n"
      "current {epoch, version, hold, kept}, candidate, activation_failure, mixed_ms, directory (its state).");
  act_with(command, program, arguments, top);
}

}  // namespace freshet::cli
