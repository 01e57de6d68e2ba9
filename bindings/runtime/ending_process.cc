// SPDX-License-Identifier: Apache-2.0
#include "bindings/runtime/ending_process.h"

#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::uint64_t kIsExiting = 0x4;  ///< The kernel's PF_EXITING.
constexpr std::uint64_t kIsKilled = std::uint64_t{1} << (SIGKILL - 1);

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> number_at(std::string_view text, int base) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), number, base);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

/// The flags are the seventh word after the command's name, which may itself have blanks and parentheses.
std::optional<std::uint64_t> flags_in(std::string_view stat) {
  std::size_t at = stat.rfind(')');
  if (at == std::string_view::npos) return std::nullopt;
  ++at;
  for (int words = 0; words < 6; ++words) {
    at = stat.find_first_not_of(' ', at);
    if (at != std::string_view::npos) at = stat.find(' ', at);
    if (at == std::string_view::npos) return std::nullopt;
  }
  return number_at(stat.substr(at), 10);
}

bool has_pending_kill(std::string_view status) {
  for (const std::string_view mask : {"\nSigPnd:", "\nShdPnd:"}) {
    const std::size_t at = status.find(mask);
    if (at == std::string_view::npos) continue;
    if ((number_at(status.substr(at + mask.size()), 16).value_or(0) & kIsKilled) != 0) return true;
  }
  return false;
}

}  // namespace

bool is_ending(long process) {
  const std::string folder = format("/proc/{}", process);
  const std::string stat = content_of(folder + "/stat");
  if (stat.empty()) return ::access("/proc/self/stat", R_OK) == 0 && ::access(folder.c_str(), F_OK) != 0;
  return (flags_in(stat).value_or(0) & kIsExiting) != 0 || has_pending_kill(content_of(folder + "/status"));
}

}  // namespace freshet
