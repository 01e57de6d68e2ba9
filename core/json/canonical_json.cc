// SPDX-License-Identifier: Apache-2.0
#include "core/json/canonical_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/base/check.h"
#include "core/base/format.h"
#include "core/json/json_document.h"

namespace freshet {
namespace {

constexpr std::uint64_t kExactIntegerMax = std::uint64_t{1} << 53;

/// Orders the bytes of UTF-8 as UTF-16 orders its units: the two differ only in that UTF-16 writes what is above U+FFFF
/// (lead bytes F0 to F4) with surrogates, which stand before U+E000 (lead bytes EE and EF).
unsigned utf16_rank(char c) {
  const auto byte = static_cast<std::uint8_t>(c);
  return byte >= 0xF0 ? 0xED0u + (byte - 0xEFu) : byte * 0x10u;
}

void append_integer(std::string& out, bool negative, std::uint64_t magnitude) {
  const bool as_string = magnitude > kExactIntegerMax;
  if (as_string) out += '"';
  if (negative) out += '-';
  out += std::to_string(magnitude);
  if (as_string) out += '"';
}

/// What ECMAScript writes as an integer is held to the integers' rule, or the text would not be its own canonical form.
void append_double(std::string& out, double value) {
  constexpr double kExponentFrom = 1e21;
  const bool as_string = std::abs(value) > static_cast<double>(kExactIntegerMax) && std::abs(value) < kExponentFrom;
  if (as_string) out += '"';
  out += canonical_number(value);
  if (as_string) out += '"';
}

void append_value(std::string& out, const JsonDocument& value);

void append_object(std::string& out, const JsonDocument& value) {
  std::vector<std::pair<std::string_view, const JsonDocument*>> members;
  for (const auto& member : value.get_ref<const JsonDocument::object_t&>()) {
    members.emplace_back(member.first, &member.second);
  }
  std::sort(members.begin(), members.end(),
            [](const auto& left, const auto& right) { return utf16_less(left.first, right.first); });
  out += '{';
  bool first = true;
  for (const auto& [name, member] : members) {
    if (!first) out += ',';
    first = false;
    append_json_string(out, name);
    out += ':';
    append_value(out, *member);
  }
  out += '}';
}

void append_array(std::string& out, const JsonDocument& value) {
  out += '[';
  bool first = true;
  for (const JsonDocument& element : value) {
    if (!first) out += ',';
    first = false;
    append_value(out, element);
  }
  out += ']';
}

/// Recurses as deep as the document is nested, which parse_json limits.
void append_value(std::string& out, const JsonDocument& value) {
  switch (value.type()) {
    case JsonDocument::value_t::object: append_object(out, value); break;
    case JsonDocument::value_t::array: append_array(out, value); break;
    case JsonDocument::value_t::string: append_json_string(out, value.get_ref<const std::string&>()); break;
    case JsonDocument::value_t::boolean: out += value.get<bool>() ? "true" : "false"; break;
    case JsonDocument::value_t::number_unsigned: append_integer(out, false, value.get<std::uint64_t>()); break;
    case JsonDocument::value_t::number_integer: {
      const auto integer = value.get<std::int64_t>();
      const auto bits = static_cast<std::uint64_t>(integer);
      append_integer(out, integer < 0, integer < 0 ? 0 - bits : bits);
      break;
    }
    case JsonDocument::value_t::number_float: append_double(out, value.get<double>()); break;
    default: out += "null"; break;
  }
}

}  // namespace

bool utf16_less(std::string_view left, std::string_view right) {
  return std::lexicographical_compare(left.begin(), left.end(), right.begin(), right.end(),
                                      [](char a, char b) { return utf16_rank(a) < utf16_rank(b); });
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\t': out += "\\t"; break;
      case '\n': out += "\\n"; break;
      case '\f': out += "\\f"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string canonical_number(double value) {
  FRESHET_CHECK(std::isfinite(value));
  if (value == 0) return "0";
  std::array<char, 32> buffer;
  const auto written =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::abs(value), std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data()));
  const std::size_t mark = text.find('e');
  std::string digits(1, text[0]);
  if (mark > 2) digits += text.substr(2, mark - 2);
  int exponent = 0;
  const char* exponent_begin = text.data() + mark + (text[mark + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);

  // ECMAScript's names: k digits, and the value is 0.digits times ten to the n.
  const int k = static_cast<int>(digits.size());
  const int n = exponent + 1;
  std::string out = value < 0 ? "-" : "";
  const auto part = [&digits](int begin, int end) {
    return std::string_view(digits).substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  if (0 < n && n <= 21) {
    out += part(0, std::min(k, n));
    if (k > n) {
      out += '.';
      out += part(n, k);
    } else {
      out.append(static_cast<std::size_t>(n - k), '0');
    }
  } else if (-6 < n && n <= 0) {
    out += "0.";
    out.append(static_cast<std::size_t>(-n), '0');
    out += digits;
  } else {
    out += part(0, 1);
    if (k > 1) out += '.';
    out += part(1, k);
    out += format("e{}{}", n > 0 ? "+" : "-", std::abs(n - 1));
  }
  return out;
}

Result<std::string> canonical_json(std::string_view text) {
  FRESHET_ASSIGN(const JsonDocument document, parse_json(text));
  return canonical_text(document);
}

std::string canonical_text(const JsonDocument& document) {
  std::string out;
  append_value(out, document);
  return out;
}

}  // namespace freshet
