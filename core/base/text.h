// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Text that comes from outside and ends up in names, JSON and messages: what is accepted, and how it is shown.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace freshet {

/// Well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view text);

/// Whether `text` has control characters: those that may command a terminal (U+0000 to U+001F, U+007F to U+009F), end a
/// line (U+2028, U+2029), or show text in another order than it has (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066
/// to U+2069). Those in `allowed`, which are ASCII, do not count.
bool has_controls(std::string_view text, std::string_view allowed = {});

/// invalid_argument, with `what` in its message, unless `text` is 1 to `bytes_max` bytes of UTF-8 without control
/// characters. Every name, key and label that comes from outside is checked by this.
Status check_label(std::string_view what, std::string_view text, std::size_t bytes_max);

/// The same without the rule about control characters and emptiness: for free text such as a tag's value. Whoever shows
/// it makes it printable().
Status check_text(std::string_view what, std::string_view text, std::size_t bytes_max);

/// "a,b" as a and b. An empty list has one part, which is empty. The parts are views of `list`.
std::vector<std::string_view> split_list(std::string_view list);

/// `text` as it may be shown: each control character, and each byte that is not UTF-8, becomes '?'. Those in `allowed`
/// stay.
std::string printable(std::string_view text, std::string_view allowed = {});

/// A JSON text as it may be shown: control characters, which JSON allows in strings from U+007F on, become \uXXXX. The
/// value stays the same.
std::string printable_json(std::string_view json);

/// `text` for a one-line message: control characters and bytes that are not UTF-8 become '?', a long one is cut.
std::string shown(std::string_view text);
/// The same, cut to fit into `bytes_max` (4 at least).
std::string shown(std::string_view text, std::size_t bytes_max);

}  // namespace freshet
