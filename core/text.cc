#include "core/text.h"

#include <algorithm>
#include <cstdint>

#include "core/format.h"

namespace freshet {
namespace {

constexpr std::size_t kShownBytesMax = 120;
constexpr std::string_view kEllipsis = "…";

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// Bytes of the well-formed character at the start of `text`, or 0. The bounds on the second byte (Unicode, table 3-7)
/// keep out overlong forms, surrogates and what is above U+10FFFF.
std::size_t character_bytes(std::string_view text) {
  const auto at = [text](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t bytes = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  const std::uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const std::uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < low || at(1) > high) return 0;
  for (std::size_t i = 2; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

Status check_text(std::string_view what, std::string_view text, std::size_t bytes_max) {
  if (text.size() > bytes_max) {
    return fail(Code::invalid_argument, format("{} of {} bytes is over the limit of {}", what, text.size(), bytes_max));
  }
  if (!is_utf8(text)) return fail(Code::invalid_argument, format("{} {} is not UTF-8", what, shown(text)));
  return {};
}

Status check_label(std::string_view what, std::string_view text, std::size_t bytes_max) {
  if (text.empty()) return fail(Code::invalid_argument, format("{} is empty", what));
  FRESHET_TRY(check_text(what, text, bytes_max));
  for (const char c : text) {
    if (is_control(c)) return fail(Code::invalid_argument, format("{} {} holds control characters", what, shown(text)));
  }
  return {};
}

std::string shown(std::string_view text) { return shown(text, kShownBytesMax + kEllipsis.size()); }

std::string shown(std::string_view text, std::size_t bytes_max) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (result.size() + std::max<std::size_t>(bytes, 1) + kEllipsis.size() > bytes_max) {
      return result.append(kEllipsis);
    }
    if (bytes == 0 || is_control(text.front())) {
      result += '?';
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

}  // namespace freshet
