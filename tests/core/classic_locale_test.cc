// SPDX-License-Identifier: Apache-2.0
#include "core/words/classic_locale.h"

#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <fstream>

#include "core/base/format.h"
#include "core/json/canonical_json.h"
#include "core/json/json_document.h"
#include "core/model/graph.h"
#include "core/safetensors/safetensors.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// A locale that exists nowhere else: nothing but a decimal sign, made by localedef, in this process while it lives.
class LocaleOfTest {
 public:
  explicit LocaleOfTest(const std::string& decimal_sign) {
    std::ofstream(folder_ / "source") << "LC_NUMERIC\ndecimal_point \"" << decimal_sign
                                      << "\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n";
    const std::string make =
        format("localedef -c -i {} -f UTF-8 {} >/dev/null 2>&1", folder_ / "source", folder_ / "xx_XX.UTF-8");
    (void)std::system(make.c_str());  // It warns of the missing categories, and its exit status tells of warnings too.
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    is_set_ = std::setlocale(LC_NUMERIC, "xx_XX.UTF-8") != nullptr;
  }
  ~LocaleOfTest() {
    (void)std::setlocale(LC_NUMERIC, "C");
    ::unsetenv("LOCPATH");
  }

  bool is_set() const { return is_set_; }

 private:
  TemporaryFolder folder_;
  bool is_set_ = false;
};

/// A comma, and a sign of two bytes of which the first alone would be taken.
constexpr const char* kSigns[] = {"<U002C>", "<U066B>"};
constexpr const char* kNoLocale = "localedef made no locale (Debian: package libc-bin)";

TEST(ClassicLocale, ANumberOfJsonIsTheSameWithEveryDecimalSign) {
  for (const char* const sign : kSigns) {
    SCOPED_TRACE(sign);
    const LocaleOfTest locale(sign);
    if (!locale.is_set()) GTEST_SKIP() << kNoLocale;
    ASSERT_STRNE(std::localeconv()->decimal_point, ".");
    EXPECT_EQ(canonical_json(R"([0.25,-1.5e3,2,1e-7,18446744073709551617])").value_or("error"),
              R"([0.25,-1500,2,1e-7,"18446744073709551617"])");
    EXPECT_EQ(read_json(R"({"loss":0.25})").value("loss", 0.0), 0.25);
    const auto graph = parse_graph_json(
        R"({"freshet_graph":1,"extra":0.5,"layers":[{"name":"d","class":"Dropout","config":{"rate":0.25}}]})");
    ASSERT_TRUE(graph);
    EXPECT_EQ((*graph)->layers()[0].config, R"({"rate":0.25})");
    EXPECT_NE(to_graph_json(**graph).find(R"("extra":0.5)"), std::string::npos);
    EXPECT_EQ(format("{} {:.2f} {:g}", 0.25, 0.25, 0.25), "0.25 0.25 0.25");
    ASSERT_STRNE(std::localeconv()->decimal_point, ".") << "the locale of the process has changed";
  }
}

TEST(ClassicLocale, StreamsReadWordsWhateverSeparatesThousands) {
  /// As in France, where libstdc++ takes the narrow space for a plain one.
  class Spaced : public std::numpunct<char> {
    char do_thousands_sep() const override { return ' '; }
    char do_decimal_point() const override { return ','; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Spaced));
  WordStream words("0 1048576 1 0.5 rest");
  int id = -1, other = -1;
  long bytes = -1;
  double half = 0;
  std::string rest;
  words >> id >> bytes >> other >> half >> rest;
  std::locale::global(before);
  EXPECT_EQ(id, 0);
  EXPECT_EQ(bytes, 1048576);
  EXPECT_EQ(other, 1);
  EXPECT_EQ(half, 0.5);
  EXPECT_EQ(rest, "rest");
}

}  // namespace
}  // namespace freshet
