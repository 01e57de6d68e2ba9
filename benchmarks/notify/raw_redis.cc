// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/notify/raw_redis.h"

#include <signal.h>

#ifdef FRESHET_HAVE_HIREDIS
#include <hiredis/hiredis.h>
#endif

#include <iostream>
#include <thread>

namespace freshet::benchmarks {

#ifdef FRESHET_HAVE_HIREDIS
namespace {

struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};
using Context = std::unique_ptr<redisContext, ContextDeleter>;

Context connect_redis(const std::string& socket) {
  for (int i = 0; i < 500; ++i) {
    Context context(redisConnectUnix(socket.c_str()));
    if (context && context->err == 0) return context;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return nullptr;
}

bool command(redisContext& context, const char* text) {
  redisReply* const reply = static_cast<redisReply*>(redisCommand(&context, text));
  if (reply == nullptr) return false;
  freeReplyObject(reply);
  return true;
}

}  // namespace

Result<std::unique_ptr<RedisServer>> RedisServer::start() {
  std::unique_ptr<RedisServer> server(new RedisServer());
  FRESHET_ASSIGN(server->folder_, ScratchFolder::create());
  const std::string& folder = server->folder_->path();
  server->socket_ = folder + "/socket";
  FRESHET_ASSIGN(server->child_,
                 Child::start({"redis-server", "--port", "0", "--unixsocket", server->socket_, "--save", "",
                               "--appendonly", "no", "--dir", folder, "--logfile", folder + "/log"}));
  const Context context = connect_redis(server->socket_);
  if (!context || !command(*context, "PING")) return fail(Code::unavailable, "redis-server does not answer");
  return server;
}

RedisServer::~RedisServer() {
  if (child_) ::kill(child_->pid(), SIGTERM);
}

Result<std::unique_ptr<RawRedis>> RawRedis::start(const RedisServer& server) {
  std::unique_ptr<RawRedis> raw(new RawRedis());
  FRESHET_ASSIGN(raw->receiver_, Child::start({own_path(), "--role=raw-redis-receiver", server.socket()}));
  FRESHET_TRY(raw->receiver_->read_line());  // It has subscribed.
  FRESHET_ASSIGN(raw->sender_, Child::start({own_path(), "--role=raw-redis-sender", server.socket()}));
  return raw;
}

Result<double> RawRedis::notify() {
  FRESHET_TRY(sender_->write_line("news"));
  FRESHET_ASSIGN(const std::string start_ns, sender_->read_line());
  FRESHET_ASSIGN(const std::string end_ns, receiver_->read_line());
  return static_cast<double>(std::strtoll(end_ns.c_str(), nullptr, 10) - std::strtoll(start_ns.c_str(), nullptr, 10)) /
         1e3;
}

int run_raw_redis_sender(const std::vector<std::string>& arguments) {
  const Context context = connect_redis(arguments.at(0));
  if (!context) return 1;
  for (std::string line; std::getline(std::cin, line);) {
    const std::int64_t start_ns = monotonic_ns();
    if (!command(*context, "PUBLISH bench version-17")) return 1;
    std::cout << start_ns << std::endl;
  }
  return 0;
}

int run_raw_redis_receiver(const std::vector<std::string>& arguments) {
  const Context context = connect_redis(arguments.at(0));
  if (!context || !command(*context, "SUBSCRIBE bench")) return 1;
  std::cout << "ready" << std::endl;
  for (void* reply = nullptr; redisGetReply(context.get(), &reply) == REDIS_OK && reply != nullptr;) {
    const std::int64_t now_ns = monotonic_ns();
    freeReplyObject(reply);
    std::cout << now_ns << std::endl;
  }
  return 0;
}

#else

Result<std::unique_ptr<RedisServer>> RedisServer::start() { return fail(Code::unsupported, "built without hiredis"); }
RedisServer::~RedisServer() = default;
Result<std::unique_ptr<RawRedis>> RawRedis::start(const RedisServer&) {
  return fail(Code::unsupported, "built without hiredis");
}
Result<double> RawRedis::notify() { return fail(Code::unsupported, "built without hiredis"); }
int run_raw_redis_sender(const std::vector<std::string>&) { return 1; }
int run_raw_redis_receiver(const std::vector<std::string>&) { return 1; }

#endif

}  // namespace freshet::benchmarks
