// SPDX-License-Identifier: Apache-2.0
#include "core/base/text.h"

#include <algorithm>
#include <cstdint>

#include "core/base/format.h"

namespace freshet {
namespace {

constexpr std::size_t kShownBytesMax = 120;
constexpr std::string_view kEllipsis = "…";

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

/// REQUIRES: a well-formed character, as character_bytes() tells.
char32_t code_point(std::string_view character) {
  const auto at = [character](std::size_t i) { return static_cast<std::uint8_t>(character[i]); };
  if (character.size() == 1) return at(0);
  char32_t value = at(0) & (0xFFU >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) value = (value << 6) | (at(i) & 0x3FU);
  return value;
}

bool is_control(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

bool is_allowed(std::string_view character, std::string_view allowed) {
  return character.size() == 1 && allowed.find(character.front()) != std::string_view::npos;
}

/// Calls each(character, is_good) for every character; a byte that is not UTF-8 is one of its own, and not good.
template <typename Each>
void each_character(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    each(character, bytes != 0 && !is_control(code_point(character)));
    text.remove_prefix(character.size());
  }
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

bool has_controls(std::string_view text, std::string_view allowed) {
  bool found = false;
  each_character(text, [&](std::string_view character, bool is_good) {
    const bool is_character = character.size() > 1 || static_cast<std::uint8_t>(character.front()) < 0x80;
    found = found || (!is_good && is_character && !is_allowed(character, allowed));
  });
  return found;
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
  if (!has_controls(text)) return {};
  return fail(Code::invalid_argument, format("{} {} holds control characters", what, shown(text)));
}

std::vector<std::string_view> split_list(std::string_view list) {
  std::vector<std::string_view> parts;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t comma = std::min(list.find(',', from), list.size());
    parts.push_back(list.substr(from, comma - from));
    from = comma + 1;
  }
  return parts;
}

std::string printable(std::string_view text, std::string_view allowed) {
  // Nearly all text is plain, and tables of 60,000 lines are.
  if (std::ranges::all_of(text, [&](char c) { return (c >= ' ' && c <= '~') || is_allowed({&c, 1}, allowed); })) {
    return std::string(text);
  }
  std::string result;
  result.reserve(text.size());
  each_character(text, [&](std::string_view character, bool is_good) {
    result += is_good || is_allowed(character, allowed) ? character : "?";
  });
  return result;
}

std::string printable_json(std::string_view json) {
  std::string result;
  result.reserve(json.size());
  each_character(json, [&](std::string_view character, bool is_good) {
    const bool is_byte = character.size() == 1;
    // Below U+0020 only the text's own white space can be control characters; a byte that is not UTF-8 is no JSON.
    if (is_good || (is_byte && character.front() != 0x7F)) {
      result += character;
    } else {
      result += format("\\u{:04x}", static_cast<std::uint32_t>(code_point(character)));
    }
  });
  return result;
}

std::string shown(std::string_view text) { return shown(text, kShownBytesMax + kEllipsis.size()); }

std::string shown(std::string_view text, std::size_t bytes_max) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    if (result.size() + std::max<std::size_t>(bytes, 1) + kEllipsis.size() > bytes_max) {
      return result.append(kEllipsis);
    }
    if (bytes == 0 || is_control(code_point(text.substr(0, bytes)))) {
      result += '?';
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return result;
}

}  // namespace freshet
