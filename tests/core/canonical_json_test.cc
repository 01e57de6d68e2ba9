// SPDX-License-Identifier: Apache-2.0
#include "core/json/canonical_json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <random>

namespace freshet {
namespace {

std::string canonical(std::string_view text) {
  const auto result = canonical_json(text);
  return result ? *result : "error: " + result.error().message();
}

TEST(CanonicalJson, SortsAndStripsAndEscapes) {
  EXPECT_EQ(canonical(" { \"b\" : [ 1 , 2.0 , { } ] , \"a\" : null, \"aa\": true, \"A\": false } "),
            R"({"A":false,"a":null,"aa":true,"b":[1,2,{}]})");
  EXPECT_EQ(canonical(R"("\u20ac\u0024\u000F\u000aA'\u0042\u0022\u005c\\\"\/\u007f")"),
            "\"\u20ac$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\x7f\"");
  EXPECT_EQ(canonical(R"("\b\t\n\f\r\u0000\u001f")"), R"("\b\t\n\f\r\u0000\u001f")");
}

/// Names in the order of their UTF-16 code units: U+1F600 is D83D DE00 there, before U+E000 and U+FB33.
TEST(CanonicalJson, SortsByUtf16CodeUnits) {
  EXPECT_EQ(canonical(R"({"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7})"),
            "{\"\\r\":2,\"1\":4,\"\u0080\":6,\"\u00f6\":7,\"\u20ac\":1,\"\U0001F600\":5,\"\ufb33\":3}");
  EXPECT_TRUE(utf16_less("\U0001F600", "\ue000"));
  EXPECT_TRUE(utf16_less("\ud7ff", "\U00010000"));
  EXPECT_TRUE(utf16_less("\U00010000", "\U0010FFFF"));
  EXPECT_TRUE(utf16_less("a", "aa"));
  EXPECT_FALSE(utf16_less("a", "a"));
}

/// The oracle: UTF-8 decoded to UTF-16 by hand, compared unit by unit.
std::u16string to_utf16(std::u32string_view text) {
  std::u16string units;
  for (const char32_t c : text) {
    if (c < 0x10000) {
      units += static_cast<char16_t>(c);
    } else {
      units += static_cast<char16_t>(0xD800 + ((c - 0x10000) >> 10));
      units += static_cast<char16_t>(0xDC00 + ((c - 0x10000) & 0x3ff));
    }
  }
  return units;
}

std::string to_utf8(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) {
    if (c < 0x80) {
      bytes += static_cast<char>(c);
    } else if (c < 0x800) {
      bytes += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      bytes += {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3f)),
                static_cast<char>(0x80 | (c & 0x3f))};
    } else {
      bytes += {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3f)),
                static_cast<char>(0x80 | ((c >> 6) & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    }
  }
  return bytes;
}

TEST(CanonicalJson, OrdersRandomNamesAsUtf16Does) {
  constexpr char32_t kAlphabet[] = {U'a',   U'b',   0x7f,   0x80,    0x7ff,   0x800,   0xd7ff,
                                    0xe000, 0xfb33, 0xffff, 0x10000, 0x1f600, 0x10ffff};
  const unsigned seed = 20261121;
  std::mt19937 random(seed);
  for (int round = 0; round < 20000; ++round) {
    std::u32string left, right;
    while (random() % 4 != 0) left += kAlphabet[random() % std::size(kAlphabet)];
    while (random() % 4 != 0) right += kAlphabet[random() % std::size(kAlphabet)];
    ASSERT_EQ(utf16_less(to_utf8(left), to_utf8(right)), to_utf16(left) < to_utf16(right)) << "seed " << seed;
  }
}

struct NumberRow {
  std::uint64_t bits;
  const char* text;
};

/// Edges of ECMAScript's Number::toString, worked out from its rules: 21 digits before an exponent is used, six zeros
/// after the point, shortest digits, and the ends of the range.
constexpr NumberRow kNumbers[] = {
    {0x0000000000000000, "0"},
    {0x8000000000000000, "0"},
    {0x0000000000000001, "5e-324"},
    {0x8000000000000001, "-5e-324"},
    {0x7fefffffffffffff, "1.7976931348623157e+308"},
    {0x4340000000000000, "9007199254740992"},
    {0xc340000000000000, "-9007199254740992"},
    {0x4430000000000000, "295147905179352830000"},
    {0x44b52d02c7e14af5, "9.999999999999997e+22"},
    {0x44b52d02c7e14af6, "1e+23"},
    {0x444b1ae4d6e2ef4e, "999999999999999700000"},
    {0x444b1ae4d6e2ef50, "1e+21"},
    {0x3eb0c6f7a0b5ed8c, "9.999999999999997e-7"},
    {0x3eb0c6f7a0b5ed8d, "0.000001"},
    {0x41b3de4355555557, "333333333.33333343"},
    {0x3ff0000000000000, "1"},
    {0x3ff8000000000000, "1.5"},
    {0xbfe0000000000000, "-0.5"},
};

TEST(CanonicalJson, WritesNumbersAsEcmascriptDoes) {
  for (const NumberRow& row : kNumbers) EXPECT_EQ(canonical_number(std::bit_cast<double>(row.bits)), row.text);
  EXPECT_EQ(canonical("[333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001]"),
            "[333333333.3333333,1e+30,4.5,0.002,1e-27]");
  EXPECT_EQ(canonical("[1, 1.0, 10e-1, 0.1e1, -0, -0.0, 0e5]"), "[1,1,1,1,0,0,0]");
}

TEST(CanonicalJson, RandomNumbersReadBackAndNoShorterTextDoes) {
  const unsigned seed = 7;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    const std::string text = canonical_number(value);
    ASSERT_EQ(std::strtod(text.c_str(), nullptr), value) << text << " seed " << seed;
    std::size_t digits = 0;
    for (const char c : text.substr(0, text.find('e'))) digits += c >= '0' && c <= '9' ? 1 : 0;
    if (digits < 2 || text.find('e') == std::string::npos) continue;
    char shorter[64];
    std::snprintf(shorter, sizeof shorter, "%.*e", static_cast<int>(digits) - 2, value);
    ASSERT_NE(std::strtod(shorter, nullptr), value) << text << " seed " << seed;
  }
}

TEST(CanonicalJson, IntegersAreNeverRounded) {
  EXPECT_EQ(canonical("[9007199254740992,-9007199254740992]"), "[9007199254740992,-9007199254740992]");
  EXPECT_EQ(canonical("[9007199254740993,-9007199254740993]"), R"(["9007199254740993","-9007199254740993"])");
  EXPECT_EQ(canonical("[18446744073709551615,-9223372036854775808]"),
            R"(["18446744073709551615","-9223372036854775808"])");
  EXPECT_EQ(canonical("[18446744073709551616,-9223372036854775809]"),
            R"(["18446744073709551616","-9223372036854775809"])");
}

TEST(CanonicalJson, NumbersThatLookLikeLargeIntegersAreTreatedAsThose) {
  EXPECT_EQ(
      canonical("[1e20,-1e19,1e16,9007199254740992.0,9007199254740994.0]"),
      R"(["100000000000000000000","-10000000000000000000","10000000000000000",9007199254740992,"9007199254740994"])");
  EXPECT_EQ(canonical("100000000000000000000"), canonical("1e20"));
  EXPECT_EQ(canonical("[1e21,-1e300]"), "[1e+21,-1e+300]");
}

TEST(CanonicalJson, IsItsOwnCanonicalForm) {
  const std::string once = canonical(R"({"z":[1e3,9007199254740993,"\u00e9"],"a":{"c":1e-7,"b":-0.0}})");
  EXPECT_EQ(canonical(once), once);
}

TEST(CanonicalJson, RefusesWhatIsNotOneValue) {
  for (const char* text :
       {"", "{", "[1,]", "01", "+1", "nul", "NaN", "Infinity", "1e400", "\"\xc0\xaf\"", "\"\\ud800\"", "1 2",
        "{\"a\":1,\"a\":2}", "{\"a\":1,\"b\":{\"c\":1,\"d\":2,\"c\":3}}", "\"\n\"", "'a'"}) {
    const auto result = canonical_json(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code(), Code::invalid_argument);
    EXPECT_EQ(result.error().message().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(canonical_json(std::string(128, '[') + std::string(128, ']')));
  EXPECT_FALSE(canonical_json(std::string(129, '[') + std::string(129, ']')));
  EXPECT_FALSE(canonical_json(std::string(5'000'000, '[')));
}

}  // namespace
}  // namespace freshet
