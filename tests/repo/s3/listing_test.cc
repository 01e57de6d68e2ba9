// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace freshet::s3 {
namespace {

std::string contents(const std::string& key, const std::string& size = "5",
                     const std::string& date = "2026-11-27T08:21:17.000Z") {
  return "<Contents><Key>" + key + "</Key><LastModified>" + date + "</LastModified><ETag>&quot;x&quot;</ETag><Size>" +
         size + "</Size></Contents>";
}
std::string listing(const std::string& inside, const std::string& truncated = "<IsTruncated>false</IsTruncated>") {
  return "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>" +
         truncated + inside + "</ListBucketResult>";
}

TEST(S3Listing, HasKeysSizesAndDates) {
  const auto page =
      parse_listing(listing(contents("p/a&amp;b") + contents("p/c", "7"), "<IsTruncated>true</IsTruncated>"), "p/");
  ASSERT_TRUE(page) << page.error().message();
  const auto& objects = page->page.objects;
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0].key, "a&b");
  EXPECT_EQ(objects[0].bytes, 5u);
  EXPECT_EQ(objects[0].modified_unix_s, 1795767677);
  EXPECT_EQ(objects[1].bytes, 7u);
  EXPECT_TRUE(page->page.more);
  EXPECT_EQ(page->last, "c");
  EXPECT_FALSE(parse_listing(listing(""), "p/")->page.more);
  EXPECT_EQ(parse_listing(listing(""), "p/")->last, std::nullopt);
}

TEST(S3Listing, FoldersOfAConsoleAreLeftOut) {
  const auto page = parse_listing(listing(contents("p/", "0") + contents("p/a") + contents("p/b/", "0")), "p/");
  ASSERT_TRUE(page) << page.error().message();
  ASSERT_EQ(page->page.objects.size(), 1u);
  EXPECT_EQ(page->page.objects[0].key, "a");
  EXPECT_EQ(page->last, "b/");
  EXPECT_EQ(parse_listing(listing(contents("p/", "0")), "p/")->last, "");
}

TEST(S3Listing, HostileTextsAreNone) {
  const std::string deep = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "<a>";
    return text;
  }();
  for (const std::string& text :
       {std::string(), std::string("<html><body>Log in</body></html>"), std::string("{\"a\": 1}"),
        listing("").substr(0, 100), listing(contents("p/a"), ""), listing(contents("p/a", "-1")),
        listing(contents("p/a", "99999999999999999999")), listing(contents("p/a", "5", "yesterday")),
        listing(contents("p/a", "5", "")), deep,
        listing("<Contents><Key>" + std::string(20'000, 'a') + "</Key></Contents>"),
        std::string("<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>") + listing(contents("p/&b;")),
        listing(contents("p/a")) + "more", listing(contents(std::string("p/\0a", 4)))}) {
    const auto page = parse_listing(text, "p/");
    ASSERT_FALSE(page) << text.substr(0, 200);
    EXPECT_EQ(page.error().code(), Code::unavailable) << text.substr(0, 200);
  }
}

TEST(S3Listing, KeysOutOfOrderOrUnaskedAreDamage) {
  EXPECT_EQ(parse_listing(listing(contents("p/b") + contents("p/a")), "p/").error().code(), Code::corrupt);
  EXPECT_EQ(parse_listing(listing(contents("p/a") + contents("p/a")), "p/").error().code(), Code::corrupt);
  EXPECT_EQ(parse_listing(listing(contents("q/a")), "p/").error().code(), Code::corrupt);
}

TEST(S3Listing, ARefusalHasItsCode) {
  const S3Refusal refusal = parse_refusal(
      "<Error><Code>NoSuchBucket</Code><Message>line\n\xe2\x80\xaered</Message><Region>eu-west-1</Region></Error>");
  EXPECT_EQ(refusal.code, "NoSuchBucket");
  EXPECT_EQ(refusal.message.find("\xe2\x80\xae"), std::string::npos);
  EXPECT_EQ(refusal.region, "eu-west-1");
  EXPECT_EQ(parse_refusal("<html><Code>NoSuchBucket</Code></html>").code, "");
  EXPECT_EQ(parse_refusal("<Error><Code>NoSuchBucket</Code>").code, "") << "a torn answer says nothing";
}

}  // namespace
}  // namespace freshet::s3
