// SPDX-License-Identifier: Apache-2.0
/// Signatures against those that AWS published: "Examples: Signature Calculations in AWS Signature Version 4" of the
/// Amazon S3 API Reference, and get-vanilla of the Signature Version 4 test suite.

#include "repo/s3/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace freshet::s3 {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

constexpr std::int64_t kMay24 = 1369353600;  // 2013-05-24T00:00:00Z
const Credentials kExample{.access_key_id = "AKIAIOSFODNN7EXAMPLE",
                           .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
const SigningScope kExampleScope{.region = "us-east-1", .unix_s = kMay24};

SignableRequest example(std::string method, std::string path, std::string_view body = "") {
  SignableRequest request{.method = std::move(method), .path = std::move(path)};
  request.payload = hex_sha256_of(bytes_of(body.data(), body.size()));
  request.headers = {{"x-amz-date", "20130524T000000Z"},
                     {"x-amz-content-sha256", request.payload},
                     {"host", "examplebucket.s3.amazonaws.com"}};
  return request;
}

TEST(S3Signature, IsTheOneOfAGet) {
  SignableRequest request = example("GET", "/test.txt");
  request.headers.emplace_back("range", "bytes=0-9");
  EXPECT_EQ(authorization(request, kExample, kExampleScope),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(S3Signature, IsTheOneOfAPut) {
  SignableRequest request = example("PUT", "/test%24file.text", "Welcome to Amazon S3.");
  EXPECT_EQ(request.payload, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
  request.headers.emplace_back("date", "Fri, 24 May 2013 00:00:00 GMT");
  request.headers.emplace_back("x-amz-storage-class", "REDUCED_REDUNDANCY");
  EXPECT_THAT(authorization(request, kExample, kExampleScope),
              EndsWith("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
}

TEST(S3Signature, IsTheOneOfAListing) {
  SignableRequest request = example("GET", "/");
  request.query = {{"prefix", "J"}, {"max-keys", "2"}};
  EXPECT_THAT(authorization(request, kExample, kExampleScope),
              EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
  request.query = {{"lifecycle", ""}};
  EXPECT_THAT(authorization(request, kExample, kExampleScope),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
}

TEST(S3Signature, IsTheOneOfASignedUrl) {
  SignableRequest request{.method = "GET", .path = "/test.txt"};
  request.headers = {{"host", "examplebucket.s3.amazonaws.com"}};
  request.payload = kUnsignedPayload;
  EXPECT_EQ(signed_query(request, kExample, kExampleScope, 86400),
            "X-Amz-Algorithm=AWS4-HMAC-SHA256"
            "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
            "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
            "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
}

TEST(S3Signature, IsTheOneOfAnotherService) {
  SignableRequest request{.method = "GET", .path = "/"};
  request.headers = {{"x-amz-date", "20150830T123600Z"}, {"host", "example.amazonaws.com"}};
  request.payload = hex_sha256_of({});
  const Credentials credentials{.access_key_id = "AKIDEXAMPLE",
                                .secret_access_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
  EXPECT_THAT(authorization(request, credentials, {.region = "us-east-1", .service = "service", .unix_s = 1440938160}),
              EndsWith("Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"));
}

TEST(S3Signature, ASessionTokenIsPartOfASignedUrl) {
  SignableRequest request{.method = "GET", .path = "/a"};
  request.headers = {{"host", "h"}};
  Credentials credentials = kExample;
  credentials.session_token = "a/b+c=";
  EXPECT_THAT(signed_query(request, credentials, kExampleScope, 60),
              HasSubstr("&X-Amz-Security-Token=a%2Fb%2Bc%3D&X-Amz-SignedHeaders=host&X-Amz-Signature="));
}

}  // namespace
}  // namespace freshet::s3
