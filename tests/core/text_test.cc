// SPDX-License-Identifier: Apache-2.0
#include "core/base/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>

namespace freshet {
namespace {

TEST(Text, KnowsUtf8) {
  for (const char* good : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "zwölf €"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe0\xa0", "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xfe", "\xf0\x90\x80z"}) {
    EXPECT_FALSE(is_utf8(bad)) << shown(bad);
  }
}

TEST(Text, ShowsAnythingInOneShortLine) {
  EXPECT_EQ(shown("plain"), "plain");
  EXPECT_EQ(shown("a\nb\x1b[2J\xff\x7f"), "a?b?[2J??");
  EXPECT_EQ(shown(std::string(1000, 'x')), std::string(120, 'x') + "…");
  EXPECT_EQ(shown(std::string(1000, 'x'), 30), std::string(27, 'x') + "…");
  EXPECT_EQ(shown("€€€€", 10), "€€…");
  EXPECT_TRUE(is_utf8(shown(std::string(119, 'x') + "€€")));
}

/// Every control character, and its neighbours that are none.
TEST(Text, KnowsTheControlsOfTerminalsAndOfTheOrderOfReading) {
  const auto utf8 = [](std::uint32_t c) {
    std::string text;
    if (c < 0x80) return text += static_cast<char>(c);
    if (c < 0x800) {
      text += static_cast<char>(0xC0 | (c >> 6));
    } else {
      text += static_cast<char>(0xE0 | (c >> 12));
      text += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    }
    return text += static_cast<char>(0x80 | (c & 0x3F));
  };
  std::set<std::uint32_t> controls = {0x7F, 0x61C, 0x200E, 0x200F};
  const auto add = [&controls](std::uint32_t from, std::uint32_t to) {
    for (; from <= to; ++from) controls.insert(from);
  };
  add(0, 0x1F);
  add(0x80, 0x9F);
  add(0x2028, 0x202E);
  add(0x2066, 0x2069);
  for (std::uint32_t c = 0; c < 0x3000; ++c) {
    const std::string text = "a" + utf8(c) + "z";
    const bool is_control = controls.contains(c);
    EXPECT_EQ(has_controls(text), is_control) << std::hex << c;
    EXPECT_EQ(check_label("x", text, 9).has_value(), !is_control) << std::hex << c;
    EXPECT_EQ(printable(text), is_control ? "a?z" : text) << std::hex << c;
    EXPECT_EQ(shown(text), is_control ? "a?z" : text) << std::hex << c;
    EXPECT_TRUE(check_text("x", text, 9));
  }
  EXPECT_FALSE(has_controls("a\nb\tc", "\n\t"));
  EXPECT_EQ(printable("a\nb\x1b\xff\x9b", "\n"), "a\nb???");
  EXPECT_FALSE(has_controls("\xff")) << "that it is no UTF-8 is another matter";
}

TEST(Text, JsonIsShownAsTheSameValue) {
  const std::string json = "{\"a\xc2\x9b\":\"\xe2\x80\xae\x7f\xe2\x82\xac\\n\",\n \"b\": 1}";
  EXPECT_EQ(printable_json(json), "{\"a\\u009b\":\"\\u202e\\u007f\xe2\x82\xac\\n\",\n \"b\": 1}");
}

TEST(Text, ChecksLabels) {
  EXPECT_TRUE(check_label("x", "fine", 4));
  EXPECT_FALSE(check_label("x", "five5", 4));
  EXPECT_FALSE(check_label("x", "", 4));
  EXPECT_FALSE(check_label("x", "a\tb", 4));
  EXPECT_FALSE(check_label("x", "\xff", 4));
  EXPECT_TRUE(check_text("x", "a\tb", 4));
  EXPECT_TRUE(check_text("x", "", 4));
}

}  // namespace
}  // namespace freshet
