#include "core/text.h"

#include <gtest/gtest.h>

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
