// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/report/page.h"

#include <sodium.h>

#include <array>

#include "core/base/check.h"
#include "core/words/markup.h"

// The assembler reads the file, as it reads the kernels for devices (core/gpu/kernels/fatbin.cc).
asm(".pushsection .rodata,\"a\",@progbits\n"
    "freshet_report_page_begin:\n"
    ".incbin \"" FRESHET_REPORT_PAGE
    "\"\n"
    "freshet_report_page_end:\n"
    ".byte 0\n"
    ".globl freshet_report_page_begin\n"
    ".globl freshet_report_page_end\n"
    ".popsection\n");

extern "C" {
extern const char freshet_report_page_begin[];
extern const char freshet_report_page_end[];
}

namespace freshet::cli {
namespace {

constexpr std::string_view kScriptBegin = "<script>";
constexpr std::string_view kScriptEnd = "</script>";

std::string_view page_template() {
  return {freshet_report_page_begin, static_cast<std::size_t>(freshet_report_page_end - freshet_report_page_begin)};
}

/// Of the template's own script, as a Content-Security-Policy names it.
std::string script_source() {
  const std::string_view page = page_template();
  const std::size_t begin = page.find(kScriptBegin) + kScriptBegin.size();
  const std::string_view script = page.substr(begin, page.find(kScriptEnd, begin) - begin);
  std::array<unsigned char, crypto_hash_sha256_BYTES> digest = {};
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): libsodium's bytes.
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(script.data()), script.size());
  std::string text(sodium_base64_ENCODED_LEN(digest.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), digest.data(), digest.size(), sodium_base64_VARIANT_ORIGINAL);
  text.pop_back();  // The zero at the end.
  return "sha256-" + text;
}

/// JSON for a script element, of which no text can end it. These characters stand in strings alone.
std::string script_json(const Json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', true, Json::error_handler_t::replace)) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      default: text += c;
    }
  }
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const std::string& lineage, const Json& data) {
  const std::array<std::pair<std::string_view, std::string>, 4> parts = {{{"{{SCRIPT}}", script_source()},
                                                                          {"{{TITLE}}", escaped_markup(title)},
                                                                          {"{{LINEAGE}}", lineage},
                                                                          {"{{DATA}}", script_json(data)}}};
  // In the template's order, so that a part is never searched for another one's place.
  std::string_view rest = page_template();
  std::string page;
  for (const auto& [place, text] : parts) {
    const std::size_t at = rest.find(place);
    FRESHET_CHECK(at != std::string_view::npos);
    page += rest.substr(0, at);
    page += text;
    rest.remove_prefix(at + place.size());
  }
  return page += rest;
}

}  // namespace freshet::cli
