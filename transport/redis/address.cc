// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/address.h"

#include <optional>
#include <string_view>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet {
namespace {

constexpr std::string_view kRedisScheme = "redis://";
constexpr std::string_view kTls = "rediss://";
constexpr std::string_view kUnix = "redis+unix://";
constexpr std::size_t kRedisTextBytesMax = 4096;
constexpr std::size_t kHostBytesMax = 255;
constexpr std::size_t kPathBytesMax = 107;  ///< What a sockaddr_un takes.
constexpr std::uint32_t kDatabaseMax = 65535;

tl::unexpected<Error> bad(std::string_view what) {
  return fail(
      Code::invalid_argument,
      format("directory redis://…: {} (redis://[:PASSWORD@]HOST[:PORT][/DB], or redis+unix:///PATH[?db=N])", what));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

/// Takes "user:password@" off the front of `rest`.
Status take_credentials(std::string_view* rest, RedisAddress* address) {
  // The last one: a path holds none before the first slash, and a password may hold one unencoded.
  const std::size_t at = rest->rfind('@');
  if (at == std::string_view::npos) return {};
  const std::string_view credentials = rest->substr(0, at);
  rest->remove_prefix(at + 1);
  const std::size_t colon = credentials.find(':');
  if (colon == std::string_view::npos) return bad("before the @ there is no \":PASSWORD\"");
  const auto user = percent_decoded(credentials.substr(0, colon));
  const auto password = percent_decoded(credentials.substr(colon + 1));
  if (!user || !password) return bad("user or password has a % that encodes nothing");
  if (password->empty()) return bad("the password is empty");
  address->user = *user;
  address->password = *password;
  return {};
}

Status take_host_and_port(std::string_view place, RedisAddress* address) {
  std::string_view host = place;
  std::string_view port;
  if (place.starts_with('[')) {
    const std::size_t end = place.find(']');
    if (end == std::string_view::npos) return bad("a [ without its ]");
    host = place.substr(1, end - 1);
    port = place.substr(end + 1);
  } else if (const std::size_t colon = place.find(':'); colon != std::string_view::npos) {
    host = place.substr(0, colon);
    port = place.substr(colon);
  }
  if (!check_label("host", host, kHostBytesMax) || host.find(' ') != std::string_view::npos) {
    return bad("there is no host");
  }
  address->host = std::string(host);
  if (port.empty()) return {};
  const auto value = port.starts_with(':') ? number_in<std::uint16_t>(port.substr(1)) : std::nullopt;
  if (!value || *value == 0) return bad("the port is not 1 to 65535");
  address->port = *value;
  return {};
}

Status take_database(std::string_view text, RedisAddress* address) {
  if (text.empty()) return {};
  const auto value = number_in<std::uint32_t>(text);
  if (!value || *value > kDatabaseMax) return bad("the database is not a number");
  address->database = *value;
  return {};
}

}  // namespace

std::string RedisAddress::text() const {
  if (!path.empty()) return format("redis+unix://{}{}", path, database == 0 ? "" : format("?db={}", database));
  const bool numeric6 = host.find(':') != std::string::npos;
  return format("redis://{}{}{}:{}/{}", numeric6 ? "[" : "", host, numeric6 ? "]" : "", port, database);
}

Result<RedisAddress> RedisAddress::parse(const std::string& text) {
  if (text.size() > kRedisTextBytesMax) return bad("longer than 4096 bytes");
  if (text.starts_with(kTls)) {
    return fail(Code::unsupported,
                "directory rediss://…: this build's hiredis has no TLS; use redis:// through a tunnel, or on a network "
                "that you trust");
  }
  RedisAddress address;
  if (text.starts_with(kUnix)) {
    std::string_view rest = std::string_view(text).substr(kUnix.size());
    FRESHET_TRY(take_credentials(&rest, &address));
    const std::size_t query = rest.find('?');
    address.path = std::string(rest.substr(0, query));
    if (!address.path.starts_with('/') || !check_label("path", address.path, kPathBytesMax)) {
      return bad("the path of a Unix socket is absolute, and at most 107 bytes");
    }
    if (query == std::string_view::npos) return address;
    if (!rest.substr(query).starts_with("?db=")) return bad("after the ? only db=N can stand");
    FRESHET_TRY(take_database(rest.substr(query + 4), &address));
    return address;
  }
  if (!text.starts_with(kRedisScheme)) return bad("it does not start so");
  std::string_view rest = std::string_view(text).substr(kRedisScheme.size());
  FRESHET_TRY(take_credentials(&rest, &address));
  const std::size_t slash = rest.find('/');
  FRESHET_TRY(take_host_and_port(rest.substr(0, slash), &address));
  if (slash != std::string_view::npos) FRESHET_TRY(take_database(rest.substr(slash + 1), &address));
  return address;
}

}  // namespace freshet
