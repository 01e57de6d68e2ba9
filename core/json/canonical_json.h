// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Canonical JSON (RFC 8785): one text for one value, so that values can be compared and hashed as text. Members sorted
/// by the UTF-16 code units of their names, numbers as ECMAScript writes them (1 equals 1.0, -0 is 0), no white space.
/// Where the RFC leaves it to the writer, integers over 2^53 in magnitude become strings of their digits, and so do
/// those floating-point numbers that ECMAScript would write like such an integer (2^53 to 10^21).

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

/// The canonical form of a JSON text. invalid_argument for what parse_json (core/json/json_document.h) refuses.
Result<std::string> canonical_json(std::string_view text);

/// A finite double as ECMAScript's Number::toString writes it: the shortest digits that read back to the same value.
std::string canonical_number(double value);

/// Appends `text` (UTF-8) as a JSON string with the fewest escapes.
void append_json_string(std::string& out, std::string_view text);

/// The order of member names: by UTF-16 code units, given UTF-8.
bool utf16_less(std::string_view left, std::string_view right);

}  // namespace freshet
