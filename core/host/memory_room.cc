// SPDX-License-Identifier: Apache-2.0
#include "core/host/memory_room.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet {
namespace {

namespace fs = std::filesystem;

/// The file's first word as a number; nothing for "max", or when there is no such file.
std::optional<std::uint64_t> number_in_file(const fs::path& path) {
  std::ifstream file(path);
  std::string word;
  return file >> word ? number_in<std::uint64_t>(word) : std::nullopt;
}

/// A line "KEY VALUE" or "KEY: VALUE kB" of a file of such lines.
std::optional<std::uint64_t> value_in_file(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, value;
    if (words >> name >> value && name == key) return number_in<std::uint64_t>(value);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> least(std::optional<std::uint64_t> one, std::optional<std::uint64_t> other) {
  if (!one || !other) return one ? one : other;
  return std::min(*one, *other);
}

/// A hierarchy of control groups: how its files are called.
struct Hierarchy {
  std::string_view type;  ///< Of the file system, in mountinfo.
  std::string_view usage;
  std::string_view limits[2];
  std::string_view cache[2];  ///< Lines of memory.stat: what the kernel drops before it kills.
};

constexpr Hierarchy kVersion2{.type = "cgroup2",
                              .usage = "memory.current",
                              .limits = {"memory.max", "memory.high"},
                              .cache = {"inactive_file", "active_file"}};
constexpr Hierarchy kVersion1{.type = "cgroup",
                              .usage = "memory.usage_in_bytes",
                              .limits = {"memory.limit_in_bytes", "memory.limit_in_bytes"},
                              .cache = {"total_inactive_file", "total_active_file"}};

bool has_word(std::string_view list, std::string_view word) {
  const std::vector<std::string_view> words = split_list(list);
  return std::ranges::find(words, word) != words.end();
}

/// Of this process, as /proc/self/cgroup names it: "0::/path" in version 2, "4:memory:/path" in version 1.
std::optional<std::string> group_of(const std::string& root, const Hierarchy& hierarchy) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const bool is_it = &hierarchy == &kVersion2 ? controllers.empty() : has_word(controllers, "memory");
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// Where a hierarchy is mounted, and which of its groups is seen there as the topmost.
struct Mount {
  std::string group;
  std::string folder;
};

/// A line is "id parent device GROUP FOLDER options [more] - TYPE source OPTIONS".
std::optional<Mount> mount_of(const std::string& root, const Hierarchy& hierarchy) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), behind(line.substr(dash + 3));
    std::string skipped, type, options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.group >> mount.folder;
    behind >> type >> skipped >> options;
    const bool is_it = type == hierarchy.type && (&hierarchy == &kVersion2 || has_word(options, "memory"));
    if (is_it && !mount.folder.empty()) return mount;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> left_in_group(const fs::path& folder, const Hierarchy& hierarchy) {
  std::optional<std::uint64_t> limit;
  for (const std::string_view name : hierarchy.limits) limit = least(limit, number_in_file(folder / name));
  if (!limit) return std::nullopt;
  std::uint64_t used = number_in_file(folder / hierarchy.usage).value_or(0);
  for (const std::string_view name : hierarchy.cache) {
    used -= std::min(used, value_in_file(folder / "memory.stat", name).value_or(0));
  }
  return *limit - std::min(*limit, used);
}

std::optional<std::uint64_t> left_in_groups(const std::string& root, const Hierarchy& hierarchy) {
  const auto group = group_of(root, hierarchy);
  const auto mount = mount_of(root, hierarchy);
  if (!group || !mount) return std::nullopt;
  // A container may see its own group as the mount's root while its name is still the host's.
  fs::path below = fs::path(*group).lexically_relative(mount->group);
  if (below.empty() || *below.begin() == "..") below = ".";
  std::optional<std::uint64_t> left = left_in_group(root + mount->folder, hierarchy);
  fs::path folder = root + mount->folder;
  for (const fs::path& part : below) {
    if (part == "." || part.empty()) continue;
    folder /= part;
    left = least(left, left_in_group(folder, hierarchy));
  }
  return left;
}

/// Left to everybody else.
constexpr std::uint64_t kMemoryReserveBytes = std::uint64_t{64} << 20;

}  // namespace

std::optional<std::uint64_t> available_memory_bytes(const std::string& root) {
  std::optional<std::uint64_t> left;
  if (const auto kib = value_in_file(root + "/proc/meminfo", "MemAvailable:")) left = *kib * 1024;
  for (const Hierarchy* hierarchy : {&kVersion2, &kVersion1}) left = least(left, left_in_groups(root, *hierarchy));
  return left;
}

Status check_memory_room(std::uint64_t bytes) {
  const auto available = available_memory_bytes();
  if (!available || (bytes <= *available && std::min(bytes, kMemoryReserveBytes) <= *available - bytes)) return {};
  return fail(Code::out_of_space, format("{} bytes wanted, {} are available", bytes, *available));
}

}  // namespace freshet
