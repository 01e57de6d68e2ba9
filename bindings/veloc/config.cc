// SPDX-License-Identifier: Apache-2.0
#include "bindings/veloc/config.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "core/base/format.h"
#include "core/words/number.h"

namespace freshet::veloc {
namespace {

constexpr std::array kKnown = {"scratch",          "persistent",     "mode",  "threaded",   "max_versions",
                               "scratch_versions", "failure_domain", "group", "meet",       "limit_mib_s",
                               "patience",         "keys",           "allow", "server_key", "persistent_server_key"};
/// VELOC's words without meaning here: every byte is proved, nothing else has to run, and a repository describes
/// itself. The intervals are the program's: it says when it checkpoints.
constexpr std::array kWithoutEffect = {
    "meta",       "chksum",      "aggregated",          "axl_type",          "max_parallelism",
    "log_prefix", "ec_interval", "persistent_interval", "watchdog_interval", "daos_pool",
    "daos_cont"};

std::string trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

Result<std::map<std::string, std::string>> read_file(const std::string& path) {
  std::map<std::string, std::string> words;
  if (path.empty()) return words;
  std::ifstream file(path);
  if (!file) return fail(Code::not_found, format("cannot read {}", path));
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    line = trimmed(line.substr(0, line.find_first_of("#;")));
    if (line.empty() || line.front() == '[') continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) return refuse(format("{}, line {}: no \"word = value\"", path, number));
    words[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
  return words;
}

Result<double> number_of(const std::string& word, const std::string& text, double least, double most) {
  const auto value = number_in<double>(text);
  if (value && *value >= least && *value <= most) return *value;
  return refuse(format("{} = {}: a number from {} to {}", word, text, least, most));
}

bool is_yes(const std::string& text) { return text == "true" || text == "yes" || text == "on" || text == "1"; }

}  // namespace

Result<Config> read_config(Env& env, const std::string& path, std::uint32_t rank) {
  FRESHET_ASSIGN(auto given, read_file(path));
  const auto from_environment = [&](const char* word) {
    std::string name = format("VELOC_{}", word);
    for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    if (auto value = env.variable(name)) given[word] = *value;
  };
  for (const char* word : kKnown) from_environment(word);
  const auto take = [&](const char* word) {
    std::string value = given[word];
    given.erase(word);
    const std::string place = "{rank}";
    for (std::size_t at = value.find(place); at != std::string::npos; at = value.find(place)) {
      value.replace(at, place.size(), format("{}", rank));
    }
    return value;
  };
  Config config{.scratch = take("scratch"),
                .persistent = take("persistent"),
                .host = take("failure_domain"),
                .meet = take("meet")};
  if (config.scratch.empty()) return refuse("scratch: a node-local folder is needed");
  const std::string mode = take("mode");
  if (!mode.empty() && mode != "sync" && mode != "async" && mode != "threaded") {
    return refuse(format("mode = {}: sync or async", mode));
  }
  config.sync = mode == "sync" && !is_yes(take("threaded"));
  given.erase("threaded");
  if (const std::string group = take("group"); !group.empty()) {
    FRESHET_ASSIGN(config.group, levels::parse_group_scheme(group));
  }
  const auto keep = [&](const char* word, std::initializer_list<CheckpointLevel> levels) -> Status {
    const std::string text = take(word);
    if (text.empty() || text == "0") return {};
    FRESHET_ASSIGN(const double count, number_of(word, text, 0, 1e9));
    for (const CheckpointLevel level : levels) config.keep[level] = static_cast<std::uint32_t>(count);
    return {};
  };
  FRESHET_TRY(keep("max_versions", {CheckpointLevel::external}));
  FRESHET_TRY(keep("scratch_versions", {CheckpointLevel::local, CheckpointLevel::group}));
  if (const std::string limit = take("limit_mib_s"); !limit.empty()) {
    FRESHET_ASSIGN(const double mib, number_of("limit_mib_s", limit, 0, 1e9));
    config.limit_bytes_per_second = static_cast<std::uint64_t>(mib * 1024 * 1024);
  }
  if (const std::string patience = take("patience"); !patience.empty()) {
    FRESHET_ASSIGN(const double seconds, number_of("patience", patience, 0.1, 1e9));
    config.patience = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  config.security = {.key_file = take("keys"), .allow_file = take("allow"), .server_key = take("server_key")};
  config.persistent_server_key = take("persistent_server_key");
  for (const auto& [word, value] : given) {
    const bool known = std::ranges::find(kWithoutEffect, word) != kWithoutEffect.end();
    if (!known) return refuse(format("{} is not a known word", word));
    if (!value.empty() && value != "0" && value != "false") config.without_effect.push_back(word);
  }
  return config;
}

}  // namespace freshet::veloc
