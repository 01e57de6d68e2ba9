// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/named_address.h"

#include <string_view>

namespace freshet {
namespace {

constexpr std::string_view kUcx = "ucx://";

}  // namespace

std::string resolve_offered(const std::string& offered, const SocketAddress& reached) {
  const bool is_ucx = offered.starts_with(kUcx);
  if (!reached.is_tcp() || (!is_ucx && !offered.starts_with(kTcpPrefix))) return offered;
  const auto address = SocketAddress::parse(std::string(kTcpPrefix) + offered.substr(kTcpPrefix.size()),
                                            /*for_binding=*/true, Reach::any_host);
  if (!address || !address->is_wildcard()) return offered;
  const std::string there = address->at_host_of(reached).text();
  return is_ucx ? std::string(kUcx) + there.substr(kTcpPrefix.size()) : there;
}

}  // namespace freshet
