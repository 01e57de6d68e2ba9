// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace freshet {

/// The whole text as a number that fits: digits, for a signed type and a fraction also a minus. Nothing otherwise.
template <typename Number, typename... Base>
std::optional<Number> number_in(std::string_view text, Base... base) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// 32 hexadecimal digits: a digest, a run, a lease. False, if the text is something else.
inline bool read_hex(std::string_view text, std::uint64_t& high, std::uint64_t& low) {
  if (text.size() != 32) return false;
  const auto first = number_in<std::uint64_t>(text.substr(0, 16), 16);
  const auto second = number_in<std::uint64_t>(text.substr(16), 16);
  high = first.value_or(0);
  low = second.value_or(0);
  return first && second;
}

}  // namespace freshet
