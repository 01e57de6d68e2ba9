// SPDX-License-Identifier: Apache-2.0
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "benchmarks/redis_queries/redis_queries.h"
#include "core/base/file_descriptor.h"

namespace freshet::benchmarks {
namespace {

/// The socket is there a moment before the server listens on it.
bool accepts_connections(const std::string& socket) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (socket.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, socket.data(), socket.size());
  const FileDescriptor descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return descriptor && ::connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

}  // namespace

Result<std::unique_ptr<RedisServer>> RedisServer::start() {
  std::unique_ptr<RedisServer> server(new RedisServer());
  std::string folder = std::filesystem::temp_directory_path() / "freshet-redis-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, folder);
  server->folder_ = folder;
  server->socket_ = folder + "/socket";
  FRESHET_ASSIGN(server->child_,
                 Child::start({"redis-server", "--port", "0", "--unixsocket", server->socket_, "--save", "",
                               "--appendonly", "no", "--dir", folder, "--logfile", folder + "/log"}));
  for (int i = 0; i < 500; ++i) {
    if (accepts_connections(server->socket_)) return server;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return fail(Code::unavailable, "redis-server does not start");
}

RedisServer::~RedisServer() {
  if (child_) ::kill(child_->pid(), SIGTERM);
  child_.reset();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

}  // namespace freshet::benchmarks
