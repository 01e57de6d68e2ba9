// SPDX-License-Identifier: Apache-2.0
// A Redis server on this host, and programs on the PATH.

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/doctor/library.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

constexpr int kServicePatienceMs = 300;

bool wait_for(int descriptor, short events) {
  pollfd waiter{.fd = descriptor, .events = events, .revents = 0};
  return ::poll(&waiter, 1, kServicePatienceMs) == 1;
}

/// True when something at 127.0.0.1:6379 answers PING as Redis does.
bool redis_answers(int descriptor) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(6379);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connecting =
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 || errno == EINPROGRESS;
  if (!connecting || !wait_for(descriptor, POLLOUT)) return false;
  constexpr std::string_view kPing = "PING\r\n";
  if (::send(descriptor, kPing.data(), kPing.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(kPing.size())) return false;
  if (!wait_for(descriptor, POLLIN)) return false;
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

std::optional<std::string> program_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = folder + "/" + name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return std::nullopt;
}

}  // namespace

Finding find_redis() {
  Finding finding{.check = "redis", .enables = "a directory and news for many hosts (optional)"};
  const bool library = static_cast<bool>(Library("libhiredis.so.0.14"));
  const bool server = is_redis_running();
  finding.health = library && server ? Health::ok : library || server ? Health::limited : Health::missing;
  finding.found = format("{}, {}", library ? "hiredis" : "no hiredis",
                         server ? "a server at 127.0.0.1:6379" : "no server at 127.0.0.1:6379");
  if (finding.health != Health::ok) finding.get = "apt install libhiredis0.14 redis-server";
  return finding;
}

Finding find_gnuplot() {
  Finding finding{.check = "gnuplot", .enables = "plots in reports"};
  const std::optional<std::string> program = program_on_path("gnuplot");
  if (program) {
    finding.found = *program;
  } else {
    finding.health = Health::missing;
    finding.found = "not on the PATH";
    finding.get = "apt install gnuplot-nox";
  }
  return finding;
}

}  // namespace freshet::cli
