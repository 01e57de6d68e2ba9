// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/top/screen.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "bindings/cli/top/sample.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr std::size_t kScreenColumns = 80;
constexpr std::string_view kIndent = "    ";
constexpr std::string_view kCut = "..";

/// Cut at the end, or for a path at its begin, where it says the least.
enum class CutAt { begin, end };

std::string cut(std::string_view text, std::size_t columns, CutAt where) {
  const std::string plain = printable(text);
  if (columns_of(plain) <= columns) return plain;
  const std::size_t rest = columns - std::min(columns, kCut.size());
  std::size_t first = 0;
  std::size_t last = plain.size();
  const auto is_inside = [&](std::size_t at) { return at < plain.size() && (plain[at] & '\xC0') == '\x80'; };
  const auto kept = [&] { return columns_of(std::string_view(plain).substr(first, last - first)); };
  while (where == CutAt::begin && (kept() > rest || is_inside(first))) ++first;
  while (where == CutAt::end && (kept() > rest || is_inside(last))) --last;
  const std::string part = plain.substr(first, last - first);
  return where == CutAt::begin ? std::string(kCut) + part : part + std::string(kCut);
}

/// Words below a row, in lines that fit. A word that is too long for a line is cut.
std::string detail_lines(const std::vector<std::string>& words) {
  const std::size_t room = kScreenColumns - kIndent.size();
  std::string text;
  std::string line;
  const auto end_line = [&] {
    if (!line.empty()) text += format("\n{}{}", kIndent, line);
    line.clear();
  };
  for (const std::string& word : words) {
    const std::string shown = cut(word, room, CutAt::end);
    if (!line.empty() && columns_of(line) + columns_of(shown) + 2 > room) end_line();
    line += (line.empty() ? "" : "; ") + shown;
  }
  end_line();
  return text;
}

/// Rows, each with its details below it; the column `flexible` is cut until the rows fit.
std::string table_with_details(std::vector<std::vector<std::string>> rows, std::size_t flexible, CutAt where,
                               std::vector<std::string> details) {
  std::size_t others = 0;
  for (std::size_t column = 0; column < rows.front().size(); ++column) {
    std::size_t width = 0;
    for (const auto& row : rows) width = std::max(width, columns_of(row[column]));
    if (column != flexible) others += width + 2;
  }
  constexpr std::size_t kLeast = 10;
  const std::size_t room = std::max(kLeast, kScreenColumns - std::min(kScreenColumns, others));
  details.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string whole = std::exchange(rows[i][flexible], cut(rows[i][flexible], room, where));
    // A name that was cut may be wanted for another command.
    if (where == CutAt::end && columns_of(whole) > room) details[i] = detail_lines({whole}) + details[i];
  }
  const std::string lines = table(rows);
  std::string text;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    text += (i == 0 ? "" : "\n") + lines.substr(begin, end - begin) + details[i];
    begin = std::min(end + 1, lines.size());
  }
  return text;
}

std::string version_text(std::uint64_t number) { return number == 0 ? "-" : format("@{}", number); }

std::string step_text(const Json& version) {
  return version.is_object() ? format("{}", stat_number(version, "step")) : "-";
}

/// The first one, which is the loss if there is one.
std::string metric_text(const Json& version) {
  constexpr std::size_t kNameColumns = 12;
  const auto metrics = version.is_object() ? version.find("metrics") : version.end();
  if (metrics == version.end() || metrics->empty()) return "-";
  const auto first = metrics->begin();
  const std::string value = first->is_number() ? format("{:.5g}", first->get<double>()) : "nan";
  return cut(first.key(), kNameColumns, CutAt::end) + " " + value;
}

std::string published_text(const Json& version) {
  constexpr std::uint64_t kLastMs = 9'000'000'000'000;  // Far enough, and its nanoseconds fit.
  const auto ms = static_cast<std::int64_t>(std::min(stat_number(version, "published_ms"), kLastMs));
  return date_text(ms * 1'000'000);
}

/// Null where the publisher tells of none.
Json newest_version(const Json& model) {
  const Json versions = stat_list(model, "versions");
  return versions.empty() ? Json() : versions.back();
}

/// Which version a subscriber should serve.
std::uint64_t wanted_version(const Json& model) {
  const auto current = model.find("current");
  const std::uint64_t number = current != model.end() ? stat_number(*current, "version") : 0;
  return number != 0 ? number : stat_number(model, "newest");
}

std::uint64_t versions_behind(const Json& model, const Json& subscriber) {
  const std::uint64_t wanted = wanted_version(model);
  return wanted - std::min(wanted, stat_number(subscriber, "serving"));
}

/// Of a relay how many behind it do not serve what it serves; of a subscriber that writes files, whether they are those
/// of an older version.
std::string behind_it_text(const Json& subscriber) {
  const std::uint64_t behind = stat_number(subscriber, "behind");
  if (behind == 0) return "";
  return stat_text(subscriber, "serves").empty() ? "its files are older" : format("{} behind it", behind);
}

/// Why a subscriber needs a look; empty where it needs none.
std::string lag_text(const Json& model, const Json& subscriber) {
  std::string why;
  const auto add = [&](const std::string& part) { why += part.empty() ? "" : (why.empty() ? "" : ", ") + part; };
  const std::uint64_t behind = versions_behind(model, subscriber);
  const std::uint64_t serving = stat_number(subscriber, "serving");
  if (behind != 0) add(serving == 0 ? "serves nothing yet" : format("at @{}, {} behind", serving, behind));
  add(stat_flag(subscriber, "silent") ? "silent" : "");
  add(behind_it_text(subscriber));
  add(stat_text(subscriber, "failed").empty() ? "" : "failed: " + stat_text(subscriber, "failed"));
  return why.empty() ? why : format("{} {}", stat_text(subscriber, "label"), why);
}

/// "ucx: on the same host; shm avoided for now, …" without the channel's name, which stands in a column of its own.
std::string why_text(const Json& subscriber) {
  const std::string why = stat_text(subscriber, "channel_why");
  const std::string name = stat_text(subscriber, "channel") + ": ";
  return why.starts_with(name) ? why.substr(name.size()) : why;
}

/// What is current, if that is not simply the newest.
std::string current_text(const Json& model) {
  const auto pair = model.find("current");
  if (pair == model.end() || !pair->is_object()) return "";
  const bool is_held = stat_flag(*pair, "hold");
  std::string line;
  if (stat_number(*pair, "version") != stat_number(model, "newest") || is_held || stat_number(*pair, "epoch") != 0) {
    line = format("@{} is current{}, epoch {}", stat_number(*pair, "version"), is_held ? " and held" : "",
                  stat_number(*pair, "epoch"));
  }
  const bool waits = is_held && pair->contains("kept") && !stat_flag(*pair, "kept");
  if (waits) {
    line += format(", but not kept here: new subscribers wait for `freshet release {}`", stat_text(model, "model"));
  }
  if (stat_number(model, "candidate") != 0) {
    line += format("{}@{} is being staged", line.empty() ? "" : "; ", stat_number(model, "candidate"));
  }
  if (const std::string failure = stat_text(model, "activation_failure"); !failure.empty()) {
    line += (line.empty() ? "" : "; ") + failure;
  }
  return line.empty() ? line : printable(line) + "\n";
}

/// A line about versions in a GPU's memory; nothing where there are none.
std::string device_text(const Json& model) {
  const std::string why = stat_text(model, "device_memory_why");
  const std::uint64_t bytes = stat_number(model, "device_memory_bytes");
  if (bytes == 0 && why.empty()) return "";
  return format("GPU memory {} ({} free){}\n", human_bytes(bytes),
                human_bytes(stat_number(model, "device_memory_free_bytes")),
                why.empty() ? "" : "; the last version is in host memory alone: " + printable(why));
}

/// The last versions, the newest first.
std::string versions_text(const Json& model) {
  const Json versions = stat_list(model, "versions");
  if (versions.empty()) return "";
  std::vector<std::vector<std::string>> rows = {{"VERSION", "STEP", "METRIC", "PUBLISHED", "FILE"}};
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    const std::string file = stat_text(*version, "file");
    rows.push_back({version_text(stat_number(*version, "version")), step_text(*version), metric_text(*version),
                    published_text(*version), file.empty() ? "-" : file});
  }
  return table_with_details(std::move(rows), 4, CutAt::begin, {}) + "\n";
}

/// What a row of a subscriber has no column for.
std::string subscriber_details(const Json& one) {
  std::vector<std::string> words;
  const auto count = [&](const char* key, const char* what) {
    if (const std::uint64_t number = stat_number(one, key); number != 0) words.push_back(format("{} {}", number, what));
  };
  count("queued_versions", "queued");
  count("gaps", "gaps");
  count("failures", "failures");
  if (stat_flag(one, "member")) {
    const std::string failed = stat_text(one, "failed");
    words.push_back(!failed.empty() ? "failed: " + failed
                                    : format("staged {}", version_text(stat_number(one, "staged"))));
  }
  if (const std::string behind = behind_it_text(one); !behind.empty()) words.push_back(behind);
  if (const std::string address = stat_text(one, "serves"); !address.empty()) words.push_back("serves at " + address);
  if (const std::string why = why_text(one); !why.empty()) words.push_back(why);
  return detail_lines(words);
}

std::string subscribers_text(const Json& model) {
  std::vector<std::vector<std::string>> rows = {
      {"SUBSCRIBER", "PID", "MODE", "CHANNEL", "SERVING", "BEHIND", "HELD", "STATE"}};
  std::vector<std::string> details = {""};
  for (const Json& one : stat_list(model, "subscribers")) {
    if (!one.is_object()) continue;
    rows.push_back({stat_text(one, "label"), format("{}", stat_number(one, "pid")),
                    stat_flag(one, "every") ? "every" : "latest", stat_text(one, "channel"),
                    version_text(stat_number(one, "serving")), format("{}", versions_behind(model, one)),
                    format("{}", stat_list(one, "held").size()), stat_flag(one, "silent") ? "silent" : "ok"});
    details.push_back(subscriber_details(one));
  }
  if (rows.size() == 1) return "no subscribers";
  return table_with_details(std::move(rows), 0, CutAt::end, std::move(details));
}

std::string model_details(const Json& model) {
  if (const std::string error = stat_text(model, "error"); !error.empty()) {
    return format("\n{}{}", kIndent, wrapped(printable(error), kIndent.size(), kScreenColumns));
  }
  std::string text;
  if (const std::string file = stat_text(newest_version(model), "file"); !file.empty()) {
    constexpr std::string_view kFrom = "from ";
    text += format("\n{}{}{}", kIndent, kFrom, cut(file, kScreenColumns - kIndent.size() - kFrom.size(), CutAt::begin));
  }
  if (wanted_version(model) != stat_number(model, "newest"))
    text += detail_lines({format("@{} is current", wanted_version(model))});
  std::vector<std::string> lags;
  for (const Json& one : stat_list(model, "subscribers")) {
    if (std::string lag = lag_text(model, one); !lag.empty()) lags.push_back(std::move(lag));
  }
  return text + detail_lines(lags);
}

}  // namespace

std::string model_screen(const Json& model, const std::string& rates) {
  return format("{}@{}  {}\n{}{} versions, {} published, {} skipped{}\narena {} ({} free, {} locked)\n{}{}{}\n",
                stat_text(model, "model"), stat_number(model, "newest"), human_bytes(stat_number(model, "model_bytes")),
                current_text(model), stat_number(model, "versions_published"),
                human_bytes(stat_number(model, "bytes_published")), stat_number(model, "versions_skipped"), rates,
                human_bytes(stat_number(model, "arena_bytes")), human_bytes(stat_number(model, "arena_free_bytes")),
                human_bytes(stat_number(model, "locked_bytes")), device_text(model), versions_text(model),
                subscribers_text(model));
}

std::string models_screen(const std::vector<Json>& models) {
  std::vector<std::vector<std::string>> rows = {{"MODEL", "NEWEST", "STEP", "METRIC", "PUBLISHED", "SERVERS"}};
  std::vector<std::string> details = {""};
  for (const Json& model : models) {
    const Json newest = newest_version(model);
    const bool answers = !model.contains("error");
    rows.push_back({stat_text(model, "model"), version_text(stat_number(model, "newest")), step_text(newest),
                    metric_text(newest), published_text(newest),
                    answers ? format("{}", stat_list(model, "subscribers").size()) : "?"});
    details.push_back(model_details(model));
  }
  return table_with_details(std::move(rows), 0, CutAt::end, std::move(details)) + "\n";
}

}  // namespace freshet::cli
