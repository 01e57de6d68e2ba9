// SPDX-License-Identifier: Apache-2.0
// A Redis server on this host.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <string_view>

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/doctor/library.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/wake.h"

namespace freshet::cli {
namespace {

constexpr Duration kServicePatience = std::chrono::milliseconds(300);

/// True when something at 127.0.0.1:6379 answers PING as Redis does.
bool redis_answers(int descriptor) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(6379);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connecting =
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EINPROGRESS;
  if (!connecting || !wait_writable(descriptor, deadline_in(kServicePatience))) return false;
  constexpr std::string_view kPing = "PING\r\n";
  if (::send(descriptor, kPing.data(), kPing.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kPing.size())) return false;
  if (!wait_readable(descriptor, deadline_in(kServicePatience))) return false;
  char answer[64];
  const ssize_t bytes = ::recv(descriptor, answer, sizeof(answer), 0);
  const std::string_view text(answer, bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return text.starts_with("+PONG") || text.starts_with("-NOAUTH");
}

bool is_redis_running() {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return false;
  const bool answers = redis_answers(descriptor);
  ::close(descriptor);
  return answers;
}

}  // namespace

Finding find_redis() {
  const Finding finding{.check = "redis", .enables = "a directory and news for many hosts (optional)"};
  if (!FRESHET_HAS_REDIS) return finding.not_built("libhiredis-dev");
  const bool library = static_cast<bool>(Library("libhiredis.so.0.14"));
  const bool server = is_redis_running();
  const std::string found =
      format("{}, {} at 127.0.0.1:6379", library ? "hiredis" : "no hiredis", server ? "a server" : "no server");
  if (library && server) return finding.with(Health::ok, found);
  return finding.with(library || server ? Health::limited : Health::missing, found,
                      "apt install libhiredis0.14 redis-server");
}

}  // namespace freshet::cli
