// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/redis_queries/redis_queries.h"

#ifdef FRESHET_HAVE_HIREDIS
#include <hiredis/hiredis.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <unordered_set>

#include "benchmarks/redis_queries/graph_text.h"
#include "core/base/format.h"

namespace freshet::benchmarks {

#ifdef FRESHET_HAVE_HIREDIS
namespace {

constexpr std::size_t kBatch = 512;  ///< Values in one request.

/// A reader-writer lock in two keys; each answers 1 when it was taken.
constexpr const char* kLockRead =
    "if redis.call('EXISTS', 'writer') == 1 then return 0 end redis.call('INCR', 'readers') return 1";
constexpr const char* kLockWrite =
    "if redis.call('EXISTS', 'writer') == 1 or tonumber(redis.call('GET', 'readers') or '0') > 0 then return 0 end "
    "redis.call('SET', 'writer', 1) return 1";
/// Gives a reference back, and takes the model out of the list with the last one.
constexpr const char* kRelease =
    "if redis.call('HINCRBY', 'references', ARGV[1], -1) > 0 then return 0 end redis.call('HDEL', 'references', "
    "ARGV[1]) "
    "redis.call('SREM', 'published', ARGV[1]) redis.call('DEL', 'graph:' .. ARGV[1]) return 1";

struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

class Client final : public RedisQueries {
 public:
  Client(redisContext* context, Form form) : context_(context), form_(form) {}

  Status publish(const std::vector<Model>& models) override {
    FRESHET_TRY(lock(kLockWrite));
    Status status;
    for (std::size_t begin = 0; begin < models.size() && status; begin += kBatch) {
      const std::size_t end = std::min(models.size(), begin + kBatch);
      for (std::size_t i = begin; i < end; ++i) {
        send({"SET", "graph:" + models[i].name, write_graph(*models[i].graph, models[i].quality, form_)});
        send({"SADD", "published", models[i].name});
        send({"HINCRBY", "references", models[i].name, "1"});
      }
      for (std::size_t i = 0; i < 3 * (end - begin) && status; ++i) status = receive().map([](const Reply&) {});
    }
    FRESHET_TRY(command({"DEL", "writer"}));
    return status;
  }

  Result<std::optional<Best>> query(const MatchGraph& graph) override {
    FRESHET_TRY(lock(kLockRead));
    auto best = scan(graph);
    if (best && *best) FRESHET_TRY(command({"HINCRBY", "references", (*best)->name, "1"}));
    FRESHET_TRY(command({"DECR", "readers"}));
    return best;
  }

  Result<bool> release(const std::string& name) override {
    FRESHET_TRY(lock(kLockWrite));
    auto reply = command({"EVAL", kRelease, "0", name});
    FRESHET_TRY(command({"DEL", "writer"}));
    return std::move(reply).map([](const Reply& answer) { return answer->integer == 1; });
  }

  Result<std::uint64_t> memory() override {
    FRESHET_ASSIGN(const Reply reply, command({"INFO", "memory"}));
    const std::string text(reply->str, reply->len);
    const std::size_t at = text.find("used_memory:");
    if (at == std::string::npos) return fail(Code::unavailable, "redis does not say what it uses");
    return std::strtoull(text.c_str() + at + 12, nullptr, 10);
  }

 private:
  void send(const std::vector<std::string>& words) {
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const std::string& word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), texts.data(), sizes.data());
  }

  Result<Reply> receive() {
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) != REDIS_OK) return fail(Code::unavailable, "redis: " + error());
    Reply owned(static_cast<redisReply*>(reply));
    if (owned->type == REDIS_REPLY_ERROR) return fail(Code::unavailable, "redis: " + std::string(owned->str));
    return owned;
  }

  Result<Reply> command(const std::vector<std::string>& words) {
    send(words);
    return receive();
  }

  std::string error() const { return context_->errstr; }

  Status lock(const char* script) {
    for (int i = 0; i < 100'000; ++i) {
      FRESHET_ASSIGN(const Reply reply, command({"EVAL", script, "0"}));
      if (reply->integer == 1) return {};
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return fail(Code::timed_out, "redis: the lock stays taken");
  }

  void ask_for(const std::vector<std::string>& names, std::size_t begin) {
    std::vector<std::string> words = {"MGET"};
    for (std::size_t i = begin; i < std::min(names.size(), begin + kBatch); ++i) words.push_back("graph:" + names[i]);
    send(words);
  }

  /// Looks at every published model; the next values are on their way while these are worked on.
  Result<std::optional<Best>> scan(const MatchGraph& graph) {
    FRESHET_ASSIGN(const Reply list, command({"SMEMBERS", "published"}));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < list->elements; ++i) names.emplace_back(list->element[i]->str, list->element[i]->len);
    std::unordered_set<SlotId> layers;
    for (const MatchGraph::Vertex& vertex : graph.vertices()) {
      if (!vertex.is_input) layers.insert(vertex.slot);
    }
    std::optional<Best> best;
    if (!names.empty()) ask_for(names, 0);
    for (std::size_t begin = 0; begin < names.size(); begin += kBatch) {
      if (begin + kBatch < names.size()) ask_for(names, begin + kBatch);
      FRESHET_ASSIGN(const Reply values, receive());
      for (std::size_t i = 0; i < values->elements; ++i) {
        if (values->element[i]->type != REDIS_REPLY_STRING) continue;
        FRESHET_TRY(look_at(names[begin + i], *values->element[i], layers, best));
      }
    }
    return best;
  }

  Status look_at(const std::string& name, const redisReply& value, const std::unordered_set<SlotId>& layers,
                 std::optional<Best>& best) {
    FRESHET_TRY(read_graph({value.str, value.len}, form_, read_));
    std::uint64_t shared = 0;
    for (const SlotId& slot : read_.slots) shared += layers.count(slot);
    const bool better = !best || shared > best->layers || (shared == best->layers && read_.quality > best->quality);
    if (shared > 0 && better) best = {.name = name, .layers = shared, .quality = read_.quality};
    return {};
  }

  const std::unique_ptr<redisContext, ContextDeleter> context_;
  const Form form_;
  ReadGraph read_;
};

}  // namespace

Result<std::unique_ptr<RedisQueries>> RedisQueries::connect(const RedisServer& server, Form form) {
  redisContext* const context = redisConnectUnix(server.socket().c_str());
  if (context == nullptr) return fail(Code::out_of_space, "redis: no memory for a connection");
  auto client = std::make_unique<Client>(context, form);
  if (context->err != 0) return fail(Code::unavailable, format("redis: {}", context->errstr));
  return client;
}

#else

Result<std::unique_ptr<RedisQueries>> RedisQueries::connect(const RedisServer&, Form) {
  return fail(Code::unsupported, "built without hiredis");
}

#endif

}  // namespace freshet::benchmarks
