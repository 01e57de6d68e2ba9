// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <sstream>
#include <system_error>

#include "core/base/format.h"
#include "core/base/wake.h"

namespace freshet::cli {
namespace {

constexpr const char* kHomeAndClear = "\x1b[H\x1b[J";

/// 0, or the errno of what went wrong; takes away from `bytes` what was written.
int write_all(int descriptor, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      (void)wait_writable(descriptor, system_clock().now() + std::chrono::seconds(1));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

Status Output::emit(const Json& object, std::string_view text) {
  return json ? write_bytes(to_line(object) + "\n") : write(std::string(text) + "\n");
}

Status Output::write(std::string_view text) { return write_bytes(printable(text, "\n\t")); }

Status Output::redraw(std::string_view text) { return write_bytes(kHomeAndClear + printable(text, "\n")); }

Status Output::write_bytes(std::string_view bytes) {
  if (closed_) return fail(Code::cancelled, "stdout is closed");
  std::string_view rest = bytes;
  std::string_view line_end = cut_off_ ? "\n" : "";
  int error = write_all(STDOUT_FILENO, line_end);
  if (error == 0) {
    error = write_all(STDOUT_FILENO, rest);
    cut_off_ = error != 0 && rest.size() < bytes.size();
  }
  if (error == 0) {
    if (is_full_) log(format("stdout takes lines again; {} were lost", lost_));
    is_full_ = false;
    return {};
  }
  if (error == EPIPE) {
    closed_ = true;
    return fail(Code::cancelled, "the reader of stdout went away");
  }
  if (outlives_full_disk) return lose(error);
  return fail_errno(error, "write to stdout");
}

Status Output::lose(int error) {
  ++lost_;
  if (!is_full_)
    log(format("write to stdout: {}; lines are lost until there is room again",
               std::generic_category().message(error)));
  is_full_ = true;
  return {};
}

void Output::log(std::string_view text) const {
  const std::string line = format("freshet: {}\n", printable(text));
  std::string_view rest = line;
  (void)write_all(STDERR_FILENO, rest);
}

std::string to_line(const Json& value) {
  return printable_json(value.dump(-1, ' ', false, nlohmann::detail::error_handler_t::replace));
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  if (bytes < 1000) return format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return format("{:.1f} {}", value, kUnits[unit]);
}

std::string date_text(std::int64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  std::array<char, 32> text{};
  if (unix_ns == 0 || ::localtime_r(&seconds, &parts) == nullptr) return "-";
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M", &parts);
  return length == 0 ? "-" : std::string(text.data(), length);
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & '\xC0') != '\x80'; }));
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::istringstream words{std::string(text)};
  std::string lines;
  std::size_t at = indent;
  for (std::string word; words >> word; at += columns_of(word)) {
    const bool fits = at == indent || at + 1 + columns_of(word) <= columns;
    if (!fits) lines += "\n" + std::string(indent, ' ');
    if (fits && at != indent) lines += ' ';
    at = fits ? at + (at == indent ? 0 : 1) : indent;
    lines += word;
  }
  return lines;
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    if (!text.empty()) text += '\n';
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += printable(row[i]);
      if (i + 1 != row.size()) text.append(widths[i] - columns_of(row[i]) + 2, ' ');
    }
  }
  return text;
}

}  // namespace freshet::cli
