// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/config.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <toml++/toml.h>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/tier/board.h"

namespace freshet::tier {
namespace {

namespace files = std::filesystem;

constexpr std::int64_t kThreadsMax = 64;
constexpr std::int64_t kWaitSecondsMax = 86'400;

Result<std::string> read_config_bytes(const std::string& file) {
  const FileDescriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail_errno(errno, "read it");
  if (!S_ISREG(info.st_mode)) return refuse("it is no regular file");
  std::string bytes;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece, sizeof piece);
    if (got < 0) return fail_errno(errno, "read it");
    if (got == 0) return bytes;
    bytes.append(piece, static_cast<std::size_t>(got));
    if (bytes.size() > kConfigBytesMax) return refuse(format("it has more than {} bytes", kConfigBytesMax));
  }
}

Status check_keys(const toml::table& table, std::initializer_list<std::string_view> known, std::string_view where) {
  for (const auto& [key, value] : table) {
    if (std::ranges::find(known, key.str()) == known.end()) {
      return refuse(format("unknown key \"{}\"{}; known are {}", shown(key.str()), where, fmt::join(known, ", ")));
    }
  }
  return {};
}

/// The string of `key`, or `otherwise` when it is absent.
Result<std::string> word_of(const toml::table& table, std::string_view key, std::string_view otherwise) {
  const auto* node = table.get(key);
  if (node == nullptr) return std::string(otherwise);
  const auto text = node->value_exact<std::string>();
  if (!text) return refuse(format("{} must be a string", key));
  return *text;
}

Result<bool> is_second(const toml::table& table, std::string_view key, std::string_view first,
                       std::string_view second) {
  FRESHET_ASSIGN(const std::string word, word_of(table, key, first));
  if (word != first && word != second) {
    return refuse(format("{} is \"{}\"; it must be \"{}\" or \"{}\"", key, shown(word), first, second));
  }
  return word == second;
}

Result<std::int64_t> number_of(const toml::table& table, std::string_view key, std::int64_t otherwise,
                               std::int64_t most) {
  const auto* node = table.get(key);
  if (node == nullptr) return otherwise;
  const auto number = node->value_exact<std::int64_t>();
  if (!number || *number < 1 || *number > most)
    return refuse(format("{} must be a whole number from 1 to {}", key, most));
  return *number;
}

Status check_path(std::string_view what, const std::string& path) {
  if (path.empty() || path.front() != '/')
    return refuse(format("{} \"{}\" must be an absolute path", what, shown(path)));
  if (path.find('\0') != std::string::npos || path.size() + kCopyPathBytes + 32 > kPathRoom) {
    return refuse(format("{} \"{}\" is no possible path", what, shown(path)));
  }
  return {};
}

Result<std::string> source_of(const toml::node& node) {
  const auto path = node.value_exact<std::string>();
  if (!path) return refuse("source must be a list of paths");
  FRESHET_TRY(check_path("source", *path));
  std::error_code error;
  const files::path real = files::canonical(*path, error);
  if (error) return refuse(format("source {}: {}", shown(*path), error.message()));
  if (!files::is_directory(real, error)) return refuse(format("source {} is no folder", shown(*path)));
  return real.string();
}

Result<TierConfig> tier_of(const toml::node& node) {
  const auto* table = node.as_table();
  if (table == nullptr) return refuse("tier must be a list of tables: write [[tier]]");
  FRESHET_TRY(check_keys(*table, {"path", "quota"}, " of a tier"));
  FRESHET_ASSIGN(const std::string path, word_of(*table, "path", ""));
  if (path.empty()) return refuse("a tier needs its path");
  FRESHET_TRY(check_path("tier", path));
  std::error_code error;
  // A disk that fails is a tier that is off, no fault of the config.
  files::path real = files::weakly_canonical(path, error);
  if (error) real = path;
  std::string text = real.lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  const auto* quota = table->get("quota");
  if (quota == nullptr) return refuse(format("tier {} needs a quota, as \"100 GiB\"", shown(path)));
  if (const auto number = quota->value_exact<std::int64_t>(); number) {
    if (*number < 1) return refuse(format("the quota of tier {} must be above 0", shown(path)));
    return TierConfig{.path = text, .quota_bytes = static_cast<std::uint64_t>(*number)};
  }
  const auto words = quota->value_exact<std::string>();
  if (!words)
    return refuse(format("the quota of tier {} must be a number of bytes or a text as \"100 GiB\"", shown(path)));
  auto bytes = bytes_of(*words);
  if (!bytes) return fail(std::move(bytes.error()).with_context(format("the quota of tier {}", shown(path))));
  return TierConfig{.path = text, .quota_bytes = *bytes};
}

/// Whether `path` is `folder` or below it.
bool is_within(const std::string& path, const std::string& folder) {
  return path == folder || folder == "/" || (path.starts_with(folder) && path[folder.size()] == '/');
}

Status check_places(const Config& config) {
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    for (std::size_t j = i + 1; j < config.sources.size(); ++j) {
      if (config.sources[i] == config.sources[j])
        return refuse(format("source {} stands there twice", shown(config.sources[i])));
    }
  }
  for (std::size_t i = 0; i < config.tiers.size(); ++i) {
    const std::string& path = config.tiers[i].path;
    for (std::size_t j = i + 1; j < config.tiers.size(); ++j) {
      if (path == config.tiers[j].path) return refuse(format("tier {} stands there twice", shown(path)));
      if (is_within(path, config.tiers[j].path) || is_within(config.tiers[j].path, path)) {
        return refuse(format("tiers {} and {} lie in each other", shown(path), shown(config.tiers[j].path)));
      }
    }
    for (const std::string& source : config.sources) {
      if (path == source) return refuse(format("{} is both a source and a tier", shown(path)));
      if (is_within(path, source)) return refuse(format("tier {} lies inside source {}", shown(path), shown(source)));
      if (is_within(source, path)) return refuse(format("source {} lies inside tier {}", shown(source), shown(path)));
    }
  }
  return {};
}

Result<Config> config_of(const std::string& bytes) {
  toml::table table;
  try {
    table = toml::parse(bytes);
  } catch (const toml::parse_error& error) {
    return refuse(format("line {}: {}", error.source().begin.line, shown(error.description())));
  }
  FRESHET_TRY(check_keys(table, {"source", "first_open", "wait_s", "validate", "evict", "threads", "tier"}, ""));
  Config config;
  const auto* sources = table.get("source");
  if (sources == nullptr || !sources->is_array() || sources->as_array()->empty()) {
    return refuse("source must be a list of one or more folders");
  }
  for (const auto& node : *sources->as_array()) {
    FRESHET_ASSIGN(std::string source, source_of(node));
    config.sources.push_back(std::move(source));
  }
  FRESHET_ASSIGN(config.first_open_waits, is_second(table, "first_open", "source", "wait"));
  FRESHET_ASSIGN(config.never_validates, is_second(table, "validate", "open", "never"));
  FRESHET_ASSIGN(config.evicts_unused, is_second(table, "evict", "never", "unused"));
  FRESHET_ASSIGN(const std::int64_t wait, number_of(table, "wait_s", 600, kWaitSecondsMax));
  config.wait = std::chrono::seconds(wait);
  FRESHET_ASSIGN(const std::int64_t threads, number_of(table, "threads", 4, kThreadsMax));
  config.threads = static_cast<unsigned>(threads);
  const auto* tiers = table.get("tier");
  if (tiers == nullptr || !tiers->is_array() || tiers->as_array()->empty())
    return refuse("there must be one or more [[tier]]");
  for (const auto& node : *tiers->as_array()) {
    FRESHET_ASSIGN(TierConfig one, tier_of(node));
    config.tiers.push_back(std::move(one));
  }
  if (config.sources.size() > kSourcesMax) return refuse(format("there may be {} sources", kSourcesMax));
  if (config.tiers.size() > kTiersMax) return refuse(format("there may be {} tiers", kTiersMax));
  FRESHET_TRY(check_places(config));
  return config;
}

Result<Config> read_checked(const std::string& file) {
  FRESHET_ASSIGN(const std::string bytes, read_config_bytes(file));
  FRESHET_ASSIGN(Config config, config_of(bytes));
  std::error_code error;
  config.file = files::absolute(file, error).string();
  if (error || config.file.size() >= kPathRoom) return refuse("its path is too long");
  config.hash = hashed(kHashSeed, bytes.data(), bytes.size());
  return config;
}

}  // namespace

Result<std::uint64_t> bytes_of(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {
      {"", 1},      {"B", 1},        {"KB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const auto* known = std::ranges::find(kUnits, unit, &Unit::name);
  if (error != std::errc() || known == std::end(kUnits) || !std::isfinite(number)) {
    return refuse(format("\"{}\" is no size; write it as \"100 GiB\", or in bytes", shown(text)));
  }
  const double bytes = number * known->bytes;
  if (bytes < 1 || bytes > 9e18) return refuse(format("\"{}\" is no size from 1 byte on", shown(text)));
  return static_cast<std::uint64_t>(bytes);
}

Result<Config> read_config(const std::string& file) {
  Result<Config> config = read_checked(file);
  if (!config) return refuse(format("{}: {}", shown(file), config.error().message()));
  return config;
}

}  // namespace freshet::tier
