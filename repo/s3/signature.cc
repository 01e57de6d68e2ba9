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

using HmacState = crypto_auth_hmacsha256_state;

HmacState keyed(std::string_view key) {
  HmacState state;
  crypto_auth_hmacsha256_init(&state, raw(key), key.size());
  return state;
}
/// Of `text`, by a copy of a state that has a key.
Sha256 hmac(HmacState state, std::string_view text) {
  Sha256 out{};
  crypto_auth_hmacsha256_update(&state, raw(text), text.size());
  crypto_auth_hmacsha256_final(&state, out.data());
  return out;
}
HmacState keyed(const Sha256& key) {
  return keyed(std::string_view(reinterpret_cast<const char*>(key.data()), key.size()));
}

/// What all signatures of a second have in common.
struct Signer {
  std::string secret;
  SigningScope of;
  std::string date;
  std::string scope;  ///< "20130524/us-east-1/s3/aws4_request".
  HmacState key{};    ///< Of the day.
};

/// Each thread keeps its last one: an owner signs hundreds of requests for one put.
const Signer& signer_for(const Credentials& credentials, const SigningScope& scope) {
  thread_local Signer kept;
  const std::string& secret = credentials.secret_access_key;
  if (!kept.date.empty() && kept.of == scope && kept.secret == secret) return kept;
  kept = {.secret = secret, .of = scope, .date = amz_date(scope.unix_s), .scope = {}, .key = {}};
  const std::string day = kept.date.substr(0, 8);
  kept.scope = format("{}/{}/{}/aws4_request", day, scope.region, scope.service);
  Sha256 key = hmac(keyed("AWS4" + secret), day);
  for (const std::string_view part : {std::string_view(scope.region), std::string_view(scope.service)}) {
    key = hmac(keyed(key), part);
  }
  kept.key = keyed(hmac(keyed(key), "aws4_request"));
  return kept;
}

std::string signed_names(const NamedValues& sorted) {
  std::string names;
  for (const auto& [name, value] : sorted) {
    if (!names.empty()) names += ';';
    names += name;
  }
  return names;
}

/// What is signed; `request.headers` are sorted, `query` is the canonical one, and `names` are signed_names().
std::string signature_of(const SignableRequest& request, std::string_view query, std::string_view names,
                         const Signer& signer) {
  crypto_hash_sha256_state canonical;
  crypto_hash_sha256_init(&canonical);
  const auto add = [&canonical](auto... parts) {
    (crypto_hash_sha256_update(&canonical, raw(parts), std::string_view(parts).size()), ...);
  };
  constexpr std::string_view kLine = "\n";
  add(std::string_view(request.method), kLine, std::string_view(request.path), kLine, query, kLine);
  for (const auto& [name, value] : request.headers) {
    add(std::string_view(name), std::string_view(":"), std::string_view(value), kLine);
  }
  add(kLine, names, kLine, std::string_view(request.payload));
  Sha256 digest{};
  crypto_hash_sha256_final(&canonical, digest.data());
  return hex_of(hmac(signer.key, format("{}\n{}\n{}\n{}", kAlgorithm, signer.date, signer.scope, hex_of(digest))));
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
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto is_plain = [](unsigned char c) {
    const auto letter = static_cast<unsigned char>(c | 0x20);
    return (letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
  };
  std::string encoded;
  encoded.reserve(text.size() + 16);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (is_plain(byte)) {
      encoded.push_back(c);
    } else {
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

std::string canonical_query(const NamedValues& query) {
  NamedValues encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(uri_encoded(name), uri_encoded(value));
  std::string text;
  for (const auto& [name, value] : sorted(std::move(encoded))) {
    if (!text.empty()) text += '&';
    text.append(name).append("=").append(value);
  }
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
  const Signer& signer = signer_for(credentials, scope);
  const std::string names = signed_names(ordered.headers);
  return format("{} Credential={}/{},SignedHeaders={},Signature={}", kAlgorithm, credentials.access_key_id,
                signer.scope, names, signature_of(ordered, canonical_query(ordered.query), names, signer));
}

std::string signed_query(SignableRequest request, const Credentials& credentials, const SigningScope& scope,
                         std::int64_t life_s) {
  const Signer& signer = signer_for(credentials, scope);
  request.headers = sorted(std::move(request.headers));
  const std::string names = signed_names(request.headers);
  request.query.emplace_back("X-Amz-Algorithm", kAlgorithm);
  request.query.emplace_back("X-Amz-Credential", credentials.access_key_id + "/" + signer.scope);
  request.query.emplace_back("X-Amz-Date", signer.date);
  request.query.emplace_back("X-Amz-Expires", format("{}", life_s));
  if (!credentials.session_token.empty()) {
    request.query.emplace_back("X-Amz-Security-Token", credentials.session_token);
  }
  request.query.emplace_back("X-Amz-SignedHeaders", names);
  std::string query = canonical_query(request.query);
  const std::string signature = signature_of(request, query, names, signer);
  return query.append("&X-Amz-Signature=").append(signature);
}

}  // namespace freshet::s3
