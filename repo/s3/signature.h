// SPDX-License-Identifier: Apache-2.0
#pragma once

/// AWS' Signature Version 4: "Signature Version 4 signing process" and "Authenticating Requests: Using Query
/// Parameters" in the Amazon S3 API Reference. Pure functions; any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/bytes.h"

namespace freshet::s3 {

struct Credentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  ///< Empty: credentials without an end.
  bool operator==(const Credentials&) const = default;
};

/// For whom, and when, a signature is.
struct SigningScope {
  std::string region;
  std::string service = "s3";
  std::int64_t unix_s = 0;
  bool operator==(const SigningScope&) const = default;
};

using NamedValues = std::vector<std::pair<std::string, std::string>>;

struct SignableRequest {
  std::string method;
  std::string path;     ///< Encoded, as it is sent.
  NamedValues query;    ///< Not encoded; in any order.
  NamedValues headers;  ///< All that are signed, "host" among them. Names in lower case, in any order.
  std::string payload;  ///< hex_sha256_of() the body, or kUnsignedPayload.
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";

std::string hex_sha256_of(Bytes bytes);
/// RFC 3986: all but A-Z a-z 0-9 - . _ ~ becomes %XX. Slashes, too.
std::string uri_encoded(std::string_view text);
/// "a=1&b=2": encoded and sorted, as it is signed, and as it is sent.
std::string canonical_query(const NamedValues& query);
/// "20130524T000000Z".
std::string amz_date(std::int64_t unix_s);

/// The value of the header Authorization. REQUIRES: the headers have x-amz-date, and x-amz-security-token if the
/// credentials have a session token.
std::string authorization(const SignableRequest& request, const Credentials& credentials, const SigningScope& scope);
/// The query of a URL that carries its signature, for `life_s` seconds from scope.unix_s.
std::string signed_query(SignableRequest request, const Credentials& credentials, const SigningScope& scope,
                         std::int64_t life_s);

}  // namespace freshet::s3
