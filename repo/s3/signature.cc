// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/signature.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <utility>

#include "core/base/format.h"

namespace freshet::s3 {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::string_view kHexDigits = "0123456789abcdef";
using Sha256 = std::array<unsigned char, crypto_hash_sha256_BYTES>;
static_assert(crypto_hash_sha256_BYTES == crypto_auth_hmacsha256_BYTES);

template <typename Range>
std::string hex_of(const Range& bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return text;
}

const unsigned char* raw(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

Sha256 hmac(std::string_view key, std::string_view text) {
  Sha256 out{};
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, raw(key), key.size());
  crypto_auth_hmacsha256_update(&state, raw(text), text.size());
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}
Sha256 hmac(const Sha256& key, std::string_view text) {
  return hmac(std::string_view(reinterpret_cast<const char*>(key.data()), key.size()), text);
}

std::string scope_text(const SigningScope& scope) {
  return format("{}/{}/{}/aws4_request", amz_date(scope.unix_s).substr(0, 8), scope.region, scope.service);
}

std::string signed_names(const NamedValues& sorted) {
  std::string names;
  for (const auto& [name, value] : sorted) names += (names.empty() ? "" : ";") + name;
  return names;
}

/// The same for a whole day, so each thread keeps its last one.
Sha256 signing_key(const Credentials& credentials, const SigningScope& scope) {
  thread_local std::string kept_for;
  thread_local Sha256 kept{};
  std::string wanted = credentials.secret_access_key + "\n" + scope_text(scope);
  if (wanted == kept_for) return kept;
  const Sha256 of_day = hmac("AWS4" + credentials.secret_access_key, amz_date(scope.unix_s).substr(0, 8));
  kept = hmac(hmac(hmac(of_day, scope.region), scope.service), "aws4_request");
  kept_for = std::move(wanted);
  return kept;
}

/// What is signed; `request.headers` are sorted.
std::string signature_of(const SignableRequest& request, const Credentials& credentials, const SigningScope& scope) {
  std::string headers;
  for (const auto& [name, value] : request.headers) headers += name + ":" + value + "\n";
  const std::string canonical =
      format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, canonical_query(request.query), headers,
             signed_names(request.headers), request.payload);
  const std::string text = format("{}\n{}\n{}\n{}", kAlgorithm, amz_date(scope.unix_s), scope_text(scope),
                                  hex_sha256_of(bytes_of(canonical.data(), canonical.size())));
  return hex_of(hmac(signing_key(credentials, scope), text));
}

NamedValues sorted(NamedValues values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace

std::string hex_sha256_of(Bytes bytes) {
  Sha256 out{};
  crypto_hash_sha256(out.data(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  return hex_of(out);
}

std::string uri_encoded(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos) {
      encoded.push_back(c);
    } else {
      encoded += format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string canonical_query(const NamedValues& query) {
  NamedValues encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(uri_encoded(name), uri_encoded(value));
  std::string text;
  for (const auto& [name, value] : sorted(std::move(encoded))) text += (text.empty() ? "" : "&") + name + "=" + value;
  return text;
}

std::string amz_date(std::int64_t unix_s) {
  const std::time_t seconds = unix_s;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday,
                parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string authorization(const SignableRequest& request, const Credentials& credentials, const SigningScope& scope) {
  SignableRequest ordered = request;
  ordered.headers = sorted(std::move(ordered.headers));
  return format("{} Credential={}/{},SignedHeaders={},Signature={}", kAlgorithm, credentials.access_key_id,
                scope_text(scope), signed_names(ordered.headers), signature_of(ordered, credentials, scope));
}

std::string signed_query(SignableRequest request, const Credentials& credentials, const SigningScope& scope,
                         std::int64_t life_s) {
  request.headers = sorted(std::move(request.headers));
  request.query.emplace_back("X-Amz-Algorithm", kAlgorithm);
  request.query.emplace_back("X-Amz-Credential", credentials.access_key_id + "/" + scope_text(scope));
  request.query.emplace_back("X-Amz-Date", amz_date(scope.unix_s));
  request.query.emplace_back("X-Amz-Expires", format("{}", life_s));
  request.query.emplace_back("X-Amz-SignedHeaders", signed_names(request.headers));
  if (!credentials.session_token.empty()) {
    request.query.emplace_back("X-Amz-Security-Token", credentials.session_token);
  }
  return canonical_query(request.query) + "&X-Amz-Signature=" + signature_of(request, credentials, scope);
}

}  // namespace freshet::s3
