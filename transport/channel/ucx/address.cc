// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/base/env.h"
#include "core/base/format.h"

namespace freshet::channel::ucx {
namespace {

constexpr std::string_view kScheme = "ucx://";

tl::unexpected<Error> bad(std::string_view text, std::string_view why) {
  return fail(Code::invalid_argument,
              format("'{}' is not a UCX address (ucx://ADDRESS:PORT, numeric): {}", text.substr(0, 200), why));
}

/// Names in UCX_TLS of those that use one.
constexpr std::string_view kAdapterTransports[] = {"all", "rc", "dc", "ib"};

bool parse_host(const std::string& host, bool bracketed, std::uint16_t port, Address& address) {
  if (bracketed) {
    auto& to = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (::inet_pton(AF_INET6, host.c_str(), &to.sin6_addr) != 1) return false;
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(port);
    address.bytes = sizeof to;
    address.loopback = IN6_IS_ADDR_LOOPBACK(&to.sin6_addr) != 0;
    return true;
  }
  auto& to = reinterpret_cast<sockaddr_in&>(address.storage);
  if (::inet_pton(AF_INET, host.c_str(), &to.sin_addr) != 1) return false;
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  address.bytes = sizeof to;
  address.loopback = (ntohl(to.sin_addr.s_addr) >> 24) == 127;
  return true;
}

}  // namespace

Result<Address> parse_address(std::string_view text, bool any_port) {
  if (!text.starts_with(kScheme)) return bad(text, "it does not begin with ucx://");
  std::string_view host = text.substr(kScheme.size());
  const std::size_t colon = host.rfind(':');
  if (colon == std::string_view::npos) return bad(text, "it has no port");
  const std::string_view digits = host.substr(colon + 1);
  host = host.substr(0, colon);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return bad(text, "its port");
  if (port == 0 && !any_port) return bad(text, "port 0");
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  Address address;
  if (!parse_host(std::string(host), bracketed, port, address)) return bad(text, "its address");
  return address;
}

std::string to_string(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (address.ss_family == AF_INET6) {
    const auto& from = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &from.sin6_addr, host.data(), host.size());
    return format("ucx://[{}]:{}", host.data(), ntohs(from.sin6_port));
  }
  const auto& from = reinterpret_cast<const sockaddr_in&>(address);
  ::inet_ntop(AF_INET, &from.sin_addr, host.data(), host.size());
  return format("ucx://{}:{}", host.data(), ntohs(from.sin_port));
}

Status check_trusted(const Address& address, std::string_view text, bool trusted_fabric) {
  if (address.loopback || trusted_fabric) return {};
  return fail(Code::failed_precondition,
              format("{} is not loopback: UCX lets every peer write into this process, so it is used only on a fabric "
                     "that is declared trusted (--trusted-fabric)",
                     text));
}

bool pays_by_rendezvous(const Address& address) {
  if (address.loopback) return false;
  std::error_code error;
  const std::filesystem::directory_iterator adapters("/sys/class/infiniband", error);
  if (error || adapters == std::filesystem::directory_iterator()) return false;
  const std::string wanted = system_env().variable("UCX_TLS").value_or("all");
  return std::any_of(std::begin(kAdapterTransports), std::end(kAdapterTransports),
                     [&](std::string_view name) { return wanted.find(name) != std::string::npos; });
}

}  // namespace freshet::channel::ucx
