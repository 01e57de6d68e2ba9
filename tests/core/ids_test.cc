// SPDX-License-Identifier: Apache-2.0
#include "core/model/ids.h"

#include <gtest/gtest.h>

#include <string>

namespace freshet {
namespace {

TEST(VersionName, IsParsedBack) {
  for (const VersionName& name : {VersionName{"demo", 0}, VersionName{"demo", 17}, VersionName{"a.b-c_9", ~0ULL}}) {
    const Result<VersionName> parsed = parse_version_name(to_string(name));
    ASSERT_TRUE(parsed) << to_string(name);
    EXPECT_EQ(*parsed, name);
  }
}

TEST(VersionName, RefusesWhatIsNoVersion) {
  for (const char* text :
       {"demo@", "demo@0", "demo@-1", "demo@1x", "demo@18446744073709551616", "@3", "", "demo@1@2"}) {
    EXPECT_FALSE(parse_version_name(text)) << text;
  }
}

TEST(ModelName, CannotLeaveAFolderOrLookLikeAFlag) {
  for (const char* name : {"../x", "a/b", ".hidden", "-flag", "a b", "a\nb", "caf\xc3\xa9", ""}) {
    EXPECT_FALSE(check_model_name(name)) << name;
  }
  EXPECT_FALSE(check_model_name(std::string(129, 'a')));
  EXPECT_TRUE(check_model_name(std::string(128, 'a')));
}

}  // namespace
}  // namespace freshet
