#include "transport/zmq/named_address.h"

namespace freshet {

Result<SocketAddress> resolve_named(const std::string& named, const SocketAddress& reached, Reach reach) {
  FRESHET_ASSIGN(SocketAddress address, SocketAddress::parse(named, true, Reach::any_host));
  const bool elsewhere = address.is_tcp() && address.is_wildcard() && reached.is_tcp();
  return SocketAddress::parse(elsewhere ? address.at_host_of(reached).text() : named, false, reach);
}

}  // namespace freshet
