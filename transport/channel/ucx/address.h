// SPDX-License-Identifier: Apache-2.0
#pragma once

/// "ucx://127.0.0.1:7000", "ucx://[::1]:7000".

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet::channel::ucx {

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  bool loopback = false;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// invalid_argument for anything else; for port 0 unless `any_port`.
Result<Address> parse_address(std::string_view text, bool any_port);

/// As parse_address takes it. REQUIRES: IPv4 or IPv6.
std::string to_string(const sockaddr_storage& address);

/// failed_precondition when it is not loopback and `trusted_fabric` was not given.
Status check_trusted(const Address& address, std::string_view text, bool trusted_fabric);

/// Whether a network adapter that reads and writes memory by itself is likely to carry what goes there.
bool pays_by_rendezvous(const Address& address);

}  // namespace freshet::channel::ucx
