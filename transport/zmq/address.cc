// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/number.h"

namespace freshet {
namespace {

constexpr std::string_view kIpc = "ipc://";
constexpr std::size_t kAddressTextBytesMax = 4096;
constexpr std::size_t kHostNameBytesMax = 253;
constexpr std::size_t kZoneBytesMax = 15;

bool is_ipv4(const std::string& host) {
  in_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

bool is_word(std::string_view text, std::string_view marks) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           marks.find(c) != std::string_view::npos;
  });
}

/// In brackets, perhaps with a zone ("[fe80::1%eth0]").
bool is_ipv6(std::string_view host) {
  if (!host.starts_with('[') || !host.ends_with(']')) return false;
  host = host.substr(1, host.size() - 2);
  const std::size_t percent = std::min(host.find('%'), host.size());
  if (percent != host.size()) {
    const std::string_view zone = host.substr(percent + 1);
    if (zone.empty() || zone.size() > kZoneBytesMax || !is_word(zone, "-_.")) return false;
  }
  in6_addr address{};
  return ::inet_pton(AF_INET6, std::string(host.substr(0, percent)).c_str(), &address) == 1;
}

bool is_host_name(std::string_view host) {
  return !host.empty() && host.size() <= kHostNameBytesMax && is_word(host, "-.") && !host.starts_with('-');
}

bool is_loopback(const std::string& host) {
  in_addr address{};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) return (ntohl(address.s_addr) >> 24) == 127;
  return host == "[::1]";
}

bool is_port(std::string_view port, bool for_binding) {
  if (port == "*") return for_binding;
  return number_in<std::uint16_t>(port).value_or(0) != 0;
}

Status check_host(const std::string& text, const std::string& host, bool for_binding) {
  if (is_ipv4(host) || is_ipv6(host)) {
    if (for_binding || (host != "0.0.0.0" && host != "[::]")) return {};
    return fail(Code::invalid_argument,
                format("address \"{}\" names every interface, so no place to connect to", text));
  }
  if (for_binding ? host == "*" : is_host_name(host)) return {};
  return fail(Code::invalid_argument, format("address \"{}\": \"{}\" is no {}", shown(text), shown(host),
                                             for_binding ? "address of an interface (numbers, or * for all)" : "host"));
}

}  // namespace

SocketAddress::SocketAddress(std::string host, std::string port)
    : text_(format("tcp://{}:{}", host, port)), host_(std::move(host)), port_(std::move(port)) {}

Result<SocketAddress> SocketAddress::parse(const std::string& text, bool for_binding, Reach reach) {
  if (text.size() > kAddressTextBytesMax) return fail(Code::invalid_argument, "an address is longer than 4096 bytes");
  if (text.starts_with(kIpc)) {
    FRESHET_ASSIGN(SocketPath path, SocketPath::of(text.substr(kIpc.size())));
    return SocketAddress(text, std::move(path));
  }
  if (text.starts_with(kTcpPrefix)) return parse_tcp(text, for_binding, reach);
  return fail(Code::invalid_argument,
              format("address \"{}\" is neither tcp://HOST:PORT nor ipc:// and an absolute path", shown(text)));
}

Result<SocketAddress> SocketAddress::parse_tcp(const std::string& text, bool for_binding, Reach reach) {
  const std::size_t colon = text.rfind(':');
  if (colon < kTcpPrefix.size()) return fail(Code::invalid_argument, format("address \"{}\" has no port", shown(text)));
  std::string host = text.substr(kTcpPrefix.size(), colon - kTcpPrefix.size());
  std::string port = text.substr(colon + 1);
  if (host == "localhost") host = "127.0.0.1";
  if (!is_port(port, for_binding)) {
    return fail(Code::invalid_argument, format("address \"{}\": \"{}\" is not a port", shown(text), shown(port)));
  }
  FRESHET_TRY(check_host(text, host, for_binding));
  if (reach == Reach::any_host || is_loopback(host)) return SocketAddress(std::move(host), std::move(port));
  if (for_binding) {
    return fail(Code::invalid_argument,
                format("address \"{}\" can be reached from other hosts, which takes keys: make them with `freshet "
                       "keygen NAME`, then give --keys NAME and --allow FILE with the public keys of its clients",
                       text));
  }
  return fail(Code::invalid_argument,
              format("address \"{}\" is not of this host, which takes keys: make them with `freshet keygen NAME`, then "
                     "give --keys NAME and --server-key with the publisher's public key",
                     text));
}

SocketAddress SocketAddress::at_host_of(const SocketAddress& host) const { return SocketAddress(host.host_, port_); }

SocketAddress SocketAddress::at_host(std::string host) const { return SocketAddress(std::move(host), port_); }

std::string SocketAddress::from_this_host() const {
  if (!is_tcp() || !is_wildcard()) return text_;
  return format("tcp://{}:{}", is_ipv6() ? "[::1]" : "127.0.0.1", port_);
}

}  // namespace freshet
