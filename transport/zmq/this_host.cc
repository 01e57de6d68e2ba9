// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <array>
#include <fstream>

#include "transport/zmq/this_host.h"

namespace freshet {

std::string this_host() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  // Unix sockets and, with them, descriptors reach as far as the file system does; loopback as far as this namespace.
  std::array<char, 128> link{};
  const ssize_t length = ::readlink("/proc/self/ns/net", link.data(), link.size() - 1);
  return boot_id + "/" + std::string(link.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
}

}  // namespace freshet
