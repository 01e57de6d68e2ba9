#pragma once

/// Text that comes from outside and ends up in names, JSON and messages: what is accepted, and how it is shown.

#include <cstddef>
#include <string>
#include <string_view>

#include "core/result.h"

namespace freshet {

/// Well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

/// invalid_argument, with `what` in its message, unless `text` is 1 to `bytes_max` bytes of UTF-8 without control
/// characters.
Status check_label(std::string_view what, std::string_view text, std::size_t bytes_max);

/// The same without the rule about control characters and emptiness: for free text such as a tag's value.
Status check_text(std::string_view what, std::string_view text, std::size_t bytes_max);

/// `text` for a one-line message: control characters and bytes that are not UTF-8 become '?', a long one is cut.
std::string shown(std::string_view text);
/// The same, cut to fit into `bytes_max` (4 at least).
std::string shown(std::string_view text, std::size_t bytes_max);

}  // namespace freshet
