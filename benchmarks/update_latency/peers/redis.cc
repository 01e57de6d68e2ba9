// SPDX-License-Identifier: Apache-2.0
/// A real redis-server on a Unix socket: SET by the writer and GET by the reader, in chunks, a few on the way at a
/// time.

#include "benchmarks/update_latency/subject.h"

#ifdef FRESHET_HAVE_HIREDIS

#include <hiredis/hiredis.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iostream>
#include <thread>

#include "benchmarks/common/child.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{8} << 20;
constexpr std::size_t kOnTheWayMax = 4;

struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};
struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Context = std::unique_ptr<redisContext, ContextDeleter>;
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;

std::string key_of(std::uint32_t tensor, std::size_t offset) { return format("t{}:{}", tensor, offset); }

Result<Reply> next_reply(redisContext& context) {
  void* reply = nullptr;
  if (redisGetReply(&context, &reply) != REDIS_OK || reply == nullptr) {
    return fail(Code::unavailable, format("redis: {}", context.errstr));
  }
  Reply owned(static_cast<redisReply*>(reply));
  if (owned->type == REDIS_REPLY_ERROR) return fail(Code::io_error, format("redis: {}", owned->str));
  return owned;
}

Status set_tensor(redisContext& context, std::uint32_t tensor, Bytes bytes) {
  std::size_t on_the_way = 0;
  for (std::size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const std::string key = key_of(tensor, at);
    const std::array<const char*, 3> words = {"SET", key.data(), reinterpret_cast<const char*>(bytes.data() + at)};
    const std::array<std::size_t, 3> sizes = {3, key.size(), std::min(kChunkBytes, bytes.size() - at)};
    redisAppendCommandArgv(&context, 3, const_cast<const char**>(words.data()), sizes.data());
    if (++on_the_way > kOnTheWayMax) {
      FRESHET_TRY(next_reply(context));
      --on_the_way;
    }
  }
  for (; on_the_way > 0; --on_the_way) FRESHET_TRY(next_reply(context));
  return {};
}

Status get_tensor(redisContext& context, std::uint32_t tensor, MutableBytes out) {
  std::deque<std::size_t> on_the_way;
  const auto take = [&]() -> Status {
    FRESHET_ASSIGN(const Reply reply, next_reply(context));
    const std::size_t at = on_the_way.front();
    on_the_way.pop_front();
    if (reply->len != std::min(kChunkBytes, out.size() - at)) return fail(Code::corrupt, "redis: a chunk is short");
    std::memcpy(out.data() + at, reply->str, reply->len);
    return {};
  };
  for (std::size_t at = 0; at < out.size(); at += kChunkBytes) {
    redisAppendCommand(&context, "GET %s", key_of(tensor, at).c_str());
    on_the_way.push_back(at);
    if (on_the_way.size() > kOnTheWayMax) FRESHET_TRY(take());
  }
  while (!on_the_way.empty()) FRESHET_TRY(take());
  return {};
}

class Redis final : public Subject {
 public:
  Redis(std::string folder, std::unique_ptr<Child> server, std::unique_ptr<Child> reader, Context context)
      : folder_(std::move(folder)),
        server_(std::move(server)),
        reader_(std::move(reader)),
        context_(std::move(context)) {}
  ~Redis() override {
    reader_.reset();
    redisAppendCommand(context_.get(), "SHUTDOWN NOSAVE");
    void* reply = nullptr;
    if (redisGetReply(context_.get(), &reply) == REDIS_OK && reply != nullptr) freeReplyObject(reply);
    server_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::string name() const override { return "redis"; }

  Result<double> update(const Model& model, Mode, std::span<const std::uint32_t> changed) override {
    const std::int64_t start_ns = monotonic_ns();
    for (const std::uint32_t tensor : changed) FRESHET_TRY(set_tensor(*context_, tensor, model.tensor(tensor)));
    FRESHET_TRY(reader_->write_line(join(changed)));
    FRESHET_ASSIGN(const std::string line, reader_->read_line());
    return milliseconds_of(line, start_ns, model, changed);
  }

 private:
  const std::string folder_;
  std::unique_ptr<Child> server_;
  std::unique_ptr<Child> reader_;
  Context context_;
};

Context connect(const std::string& socket) {
  for (int i = 0; i < 500; ++i) {
    Context context(redisConnectUnix(socket.c_str()));
    if (context && context->err == 0) return context;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Subject>> make_redis(const Model& model, const Setting& setting) {
  std::string folder = (std::filesystem::temp_directory_path() / "freshet-redis-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return fail_errno(errno, "make a folder for redis");
  const std::string socket = folder + "/socket";
  FRESHET_ASSIGN(auto server, Child::start({setting.redis, "--port", "0", "--unixsocket", socket, "--save", "",
                                            "--appendonly", "no", "--dir", folder, "--logfile", folder + "/log"}));
  Context context = connect(socket);
  if (!context) return fail(Code::unavailable, format("{} does not answer on its socket", setting.redis));
  FRESHET_ASSIGN(auto reader, Child::start({own_path(), "--role=redis-reader", socket, model.sizes()}));
  return std::make_unique<Redis>(folder, std::move(server), std::move(reader), std::move(context));
}

int run_redis_reader(const std::vector<std::string>& arguments) {
  const Context context = connect(arguments.at(0));
  if (!context) return 1;
  std::vector<std::vector<std::byte>> tensors;
  for (const std::uint64_t size : parse_sizes(arguments.at(1))) tensors.emplace_back(size, std::byte{1});
  for (std::string line; std::getline(std::cin, line);) {
    std::uint64_t stamp = 0;
    for (const std::uint32_t tensor : parse_numbers(line)) {
      if (auto status = get_tensor(*context, tensor, tensors.at(tensor)); !status) {
        std::cerr << status.error().message() << "\n";
        return 1;
      }
      std::memcpy(&stamp, tensors[tensor].data(), sizeof(stamp));
    }
    std::cout << monotonic_ns() << " " << stamp << std::endl;
  }
  return 0;
}

}  // namespace freshet::benchmarks

#else

namespace freshet::benchmarks {

Result<std::unique_ptr<Subject>> make_redis(const Model&, const Setting&) {
  return fail(Code::unsupported, "built without hiredis");
}
int run_redis_reader(const std::vector<std::string>&) { return 1; }

}  // namespace freshet::benchmarks

#endif
