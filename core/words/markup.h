// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "core/base/text.h"

namespace freshet {

/// `text` as a piece of XML or HTML, in an element or between quotes, that a reader shows as printable(text). A line
/// break stays one if it is among `allowed`.
inline std::string escaped_markup(std::string_view text, std::string_view allowed = {}) {
  std::string escaped;
  for (const char c : printable(text, allowed)) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\n': escaped += "&#10;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

}  // namespace freshet
