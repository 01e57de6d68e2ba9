#include <hiredis/hiredis.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

#include "benchmarks/redis_queries/redis_queries.h"

namespace freshet::benchmarks {
namespace {

/// The socket is there a moment before the server listens on it.
bool accepts_connections(const std::string& socket) {
  const std::unique_ptr<redisContext, void (*)(redisContext*)> context(redisConnectUnix(socket.c_str()), redisFree);
  return context != nullptr && context->err == 0;
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
