// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/address.h"

#include <charconv>
#include <optional>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/object_store/object_store.h"

namespace freshet {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::string_view kS3PlainRegion = "us-east-1";
/// Leaves room for the keys of a repository: S3 allows 1,024 bytes in all.
constexpr std::size_t kS3PrefixBytesMax = 256;

bool has_only(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

/// "Bucket naming rules" of the Amazon S3 User Guide.
bool is_bucket_name(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && has_only(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") &&
         name.front() != '.' && name.front() != '-' && name.back() != '.' && name.back() != '-' &&
         name.find("..") == std::string_view::npos;
}

bool is_region_name(std::string_view name) {
  return name.size() <= 64 && has_only(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_");
}

/// Nothing if `url` is no http[s]://HOST[:PORT].
std::optional<std::string> endpoint_of(std::string_view url) {
  if (url.ends_with('/')) url.remove_suffix(1);
  std::string_view host = url;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (url.starts_with(scheme)) host.remove_prefix(scheme.size());
  }
  if (host.size() == url.size() || host.size() > 255) return std::nullopt;
  std::string_view port;
  const auto bracket = host.starts_with('[') ? host.find(']') : 0;  // An address of IPv6 has colons, too.
  if (bracket == std::string_view::npos) return std::nullopt;
  if (const auto colon = host.find(':', bracket); colon != std::string_view::npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
    std::uint16_t number = 0;
    const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number == 0) return std::nullopt;
  }
  constexpr std::string_view kHost = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  if (host.starts_with('[')) {
    if (!host.ends_with(']') || !has_only(host.substr(1, host.size() - 2), "0123456789abcdefABCDEF:.")) return {};
  } else if (!has_only(host, kHost)) {
    return std::nullopt;
  }
  return std::string(url);
}

std::string variable_of(const Env& env, std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    if (std::string value = env.variable(name).value_or(""); !value.empty()) return value;
  }
  return {};
}

}  // namespace

bool is_s3_address(std::string_view place) { return place.starts_with(kS3Scheme); }

Result<S3Address> parse_s3_address(std::string_view text) {
  const auto refused = [&](std::string_view what) {
    return refuse(format("{}: {}; a repository in a bucket is s3://BUCKET/PREFIX[?endpoint=URL&region=R&connections=N]",
                         shown(text), what));
  };
  if (!is_s3_address(text)) return refused("another scheme");
  S3Address address;
  std::string_view rest = text.substr(kS3Scheme.size());
  std::string_view query;
  if (const auto question = rest.find('?'); question != std::string_view::npos) {
    query = rest.substr(question + 1);
    rest = rest.substr(0, question);
    if (query.empty()) return refused("nothing stands after the ?");
  }
  const auto slash = rest.find('/');
  if (!is_bucket_name(rest.substr(0, slash))) {
    return refused("a bucket has 3 to 63 of a-z 0-9 . -, and begins and ends with a letter or digit");
  }
  if (slash == std::string_view::npos) return refused("it names no prefix within the bucket");
  std::string_view prefix = rest.substr(slash + 1);
  if (prefix.ends_with('/')) prefix.remove_suffix(1);
  if (prefix.empty()) return refused("it names no prefix within the bucket");
  if (prefix.size() > kS3PrefixBytesMax || !check_object_key(prefix)) {
    return refused("a prefix has up to 256 of A-Z a-z 0-9 . _ - /, and no part of it is empty, . or ..");
  }
  address.bucket = rest.substr(0, slash);
  address.prefix = prefix;
  while (!query.empty()) {
    const auto end = query.find('&');
    const std::string_view one = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const auto equals = one.find('=');
    const std::string_view name = one.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? std::string_view() : one.substr(equals + 1);
    if (name == "endpoint" && address.endpoint.empty()) {
      const std::optional<std::string> endpoint = endpoint_of(value);
      if (!endpoint) return refused("an endpoint is http://HOST[:PORT] or https://HOST[:PORT], without a path");
      address.endpoint = *endpoint;
    } else if (name == "region" && address.region.empty()) {
      if (!is_region_name(value)) return refused("its region has no good name");
      address.region = value;
    } else if (name == "connections" && !address.connections) {
      std::size_t number = 0;
      const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      if (error != std::errc() || stop != value.data() + value.size() || number == 0 || number > kS3ConnectionsMax) {
        return refused(format("connections are 1 to {}", kS3ConnectionsMax));
      }
      address.connections = number;
    } else {
      return refused("only endpoint=URL, region=R and connections=N are known, each once");
    }
  }
  return address;
}

Result<S3Address> completed(S3Address address, const Env& env) {
  if (address.region.empty()) {
    address.region = variable_of(env, {"AWS_REGION", "AWS_DEFAULT_REGION"});
    if (address.region.empty()) address.region = kS3PlainRegion;
    if (!is_region_name(address.region)) {
      return refuse(format("AWS_REGION: \"{}\" is no region's name", shown(address.region)));
    }
  }
  if (address.endpoint.empty()) {
    const std::string named = variable_of(env, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
    const std::optional<std::string> endpoint =
        endpoint_of(named.empty() ? format("https://s3.{}.amazonaws.com", address.region) : named);
    if (!endpoint) {
      return refuse(format("AWS_ENDPOINT_URL: \"{}\" is no http://HOST[:PORT] or https://HOST[:PORT] without a path",
                           shown(named)));
    }
    address.endpoint = *endpoint;
  }
  return address;
}

}  // namespace freshet
