// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/variable_env.h"

namespace freshet {
namespace {

using testing::HasSubstr;

TEST(S3AddressTest, HasItsParts) {
  const auto plain = parse_s3_address("s3://my-bucket/runs/search.7");
  ASSERT_TRUE(plain) << plain.error().message();
  EXPECT_EQ(plain->bucket, "my-bucket");
  EXPECT_EQ(plain->prefix, "runs/search.7");
  EXPECT_EQ(plain->endpoint, "");
  const auto full = parse_s3_address("s3://abc/p/?region=eu-central-1&endpoint=https://s3.example:8333/");
  ASSERT_TRUE(full) << full.error().message();
  EXPECT_EQ(full->prefix, "p");
  EXPECT_EQ(full->endpoint, "https://s3.example:8333");
  EXPECT_EQ(full->region, "eu-central-1");
  EXPECT_TRUE(parse_s3_address("s3://abc/p?endpoint=http://[::1]:9000"));
}

TEST(S3AddressTest, MayNameItsConnections) {
  EXPECT_EQ(parse_s3_address("s3://bucket/p?connections=64")->connections, 64u);
  EXPECT_EQ(parse_s3_address("s3://bucket/p")->connections, std::nullopt);
  for (const char* number : {"0", "65", "-1", "x", "", "8x", "99999999999999999999", "8&connections=8"}) {
    EXPECT_EQ(parse_s3_address(std::string("s3://bucket/p?connections=") + number).error().code(),
              Code::invalid_argument)
        << number;
  }
}

TEST(S3AddressTest, IsChecked) {
  for (const char* text : {"s3://",
                           "s3://ab/p",
                           "s3://Bucket/p",
                           "s3://a..b/p",
                           "s3://-abc/p",
                           "s3://abc",
                           "s3://abc/",
                           "s3://abc//p",
                           "s3://abc/../p",
                           "s3://abc/p q",
                           "s3://abc/p?",
                           "s3://abc/p?x=1",
                           "s3://abc/p?endpoint=",
                           "s3://abc/p?region=",
                           "s3://abc/p?region=a b",
                           "s3://abc/p?endpoint=ftp://h",
                           "s3://abc/p?endpoint=http://h/path",
                           "s3://abc/p?endpoint=http://user:secret@h",
                           "s3://abc/p?endpoint=http://h:0",
                           "s3://abc/p?endpoint=http://h:x",
                           "s3://abc/p?endpoint=http://",
                           "s3://abc/p?endpoint=http://[::1",
                           "s3://abc/p?region=a&region=b",
                           "rados://abc/p"}) {
    const auto bad = parse_s3_address(text);
    ASSERT_FALSE(bad) << text;
    EXPECT_EQ(bad.error().code(), Code::invalid_argument) << text;
    EXPECT_THAT(bad.error().message(), HasSubstr(text));
  }
}

TEST(S3AddressTest, TheEnvironmentCompletesIt) {
  const S3Address bare{.bucket = "abc", .prefix = "p"};
  const auto nothing = completed(bare, VariableEnv::with({}));
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->endpoint, "https://s3.us-east-1.amazonaws.com");
  EXPECT_EQ(nothing->region, "us-east-1");
  const VariableEnv env = VariableEnv::with({{"AWS_REGION", "eu-west-1"}, {"AWS_ENDPOINT_URL", "http://h:1"}});
  EXPECT_EQ(completed(bare, env)->endpoint, "http://h:1");
  EXPECT_EQ(completed(bare, env)->region, "eu-west-1");
  EXPECT_EQ(completed({.bucket = "abc", .prefix = "p", .endpoint = "http://own", .region = "own"}, env)->endpoint,
            "http://own");
  EXPECT_THAT(completed(bare, VariableEnv::with({{"AWS_ENDPOINT_URL", "h:1"}})).error().message(),
              HasSubstr("AWS_ENDPOINT_URL"));
  EXPECT_THAT(completed(bare, VariableEnv::with({{"AWS_REGION", "a/b"}})).error().message(), HasSubstr("AWS_REGION"));
}

}  // namespace
}  // namespace freshet
