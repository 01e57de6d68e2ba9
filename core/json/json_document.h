// SPDX-License-Identifier: Apache-2.0
#pragma once

/// JSON text from outside, read strictly: duplicate keys, deep nesting, too many values and bytes that are not UTF-8
/// are errors; keys keep their order; integers are never rounded. For source files that link nlohmann_json.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

/// Integers are held as such when they fit in 64 bits, and as strings of their digits when they do not.
using JsonDocument = nlohmann::ordered_json;

inline constexpr std::size_t kJsonDepthMax = 128;
inline constexpr std::size_t kJsonValuesMax = std::size_t{1} << 24;

/// invalid_argument with the reason in one line.
Result<JsonDocument> parse_json(std::string_view text);

/// A short text whose members are looked up and checked by the caller: discarded, so no object, when it is not JSON. No
/// room calls the library's own parse(), which follows the process' locale.
nlohmann::json read_json(std::string_view text);
/// An object's member, if it is there and a text, or a whole number from 0.
std::optional<std::string> text_in(const nlohmann::json& object, const char* key);
std::optional<std::uint64_t> count_in(const nlohmann::json& object, const char* key);

/// The canonical form (core/json/canonical_json.h) of a document.
std::string canonical_text(const JsonDocument& document);

/// The library's words about a parse error, without its prefix, in one line of bounded length.
std::string json_error_text(const char* what);

}  // namespace freshet
