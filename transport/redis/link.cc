// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

/// Of answers that were not read to their end yet.
constexpr std::size_t kUnreadBytesMax = std::size_t{8} << 20;
constexpr long long kElementsMax = 64 * 1024;
constexpr std::size_t kWaitingMax = 4096;
/// Taken in one go, so that a flood of news does not keep the owner from everything else.
constexpr int kReadsPerStep = 16;

/// hiredis's own, but for arrays of absurd length, for which it would reserve memory before an element has come.
redisReplyObjectFunctions g_functions;
void* (*g_create_array)(const redisReadTask*, decltype(redisReadTask::elements)) = nullptr;

template <typename Count>
void* create_limited_array(const redisReadTask* task, Count count) {
  if (static_cast<long long>(count) > kElementsMax) return nullptr;
  return g_create_array(task, count);
}

redisReplyObjectFunctions* limited_functions(const redisReader& reader) {
  static const bool once = [&] {
    g_functions = *reader.fn;
    g_create_array = reader.fn->createArray;
    g_functions.createArray = create_limited_array;
    return true;
  }();
  static_cast<void>(once);
  return &g_functions;
}

std::string system_words(int error) { return std::generic_category().message(error); }

}  // namespace

Result<std::unique_ptr<RedisLink>> RedisLink::open(const RedisAddress& address, Time deadline) {
  const std::string name = address.text();
  Context context(address.path.empty() ? redisConnectNonBlock(address.host.c_str(), address.port)
                                       : redisConnectUnixNonBlock(address.path.c_str()));
  if (context == nullptr) return fail(Code::out_of_space, name + ": no memory for a connection");
  if (context->err != 0) {
    return fail(Code::unavailable, format("{}: {}", name, shown(static_cast<const char*>(context->errstr))));
  }
  ::fcntl(context->fd, F_SETFD, FD_CLOEXEC);
  context->reader->fn = limited_functions(*context->reader);
  std::unique_ptr<RedisLink> link(new RedisLink(std::move(context), name, deadline));
  link->greet(address, deadline);
  return link;
}

RedisLink::~RedisLink() = default;

void RedisLink::greet(const RedisAddress& address, Time deadline) {
  if (!address.password.empty()) {
    RedisWords words = {"AUTH"};
    if (!address.user.empty()) words.push_back(address.user);
    words.push_back(address.password);
    send("authenticate", words, deadline, [this](const Result<RedisReply>& reply) {
      // Not the server's own words: one that does not know the command repeats it with the password.
      if (!reply && greeted_) greeted_ = fail(Code::failed_precondition, name_ + " refuses the password");
    });
  }
  // A server that wants a password says so here.
  send("choose the database", {"SELECT", std::to_string(address.database)}, deadline,
       [this](const Result<RedisReply>& reply) {
         if (!reply && greeted_) greeted_ = fail(reply.error());
         ready_ = greeted_.has_value();
       });
}

short RedisLink::events() const { return static_cast<short>(POLLIN | (unwritten_ || !connected_ ? POLLOUT : 0)); }

Time RedisLink::deadline() const {
  Time first = connected_ ? Time::max() : connect_deadline_;
  // Deadlines may differ, and only the first answer in the row can come.
  for (const Waiting& waiting : waiting_) first = std::min(first, waiting.deadline);
  return first;
}

void RedisLink::send(std::string what, const RedisWords& words, Time deadline, RedisAnswer answer) {
  if (waiting_.size() >= kWaitingMax) {
    return answer(fail(Code::unavailable, format("{}: {} commands wait for answers already", name_, kWaitingMax)));
  }
  std::vector<const char*> texts;
  std::vector<std::size_t> lengths;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    lengths.push_back(word.size());
  }
  if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), texts.data(), lengths.data()) !=
      REDIS_OK) {
    return answer(fail(Code::out_of_space, name_ + ": no memory for a command"));
  }
  unwritten_ = true;
  waiting_.push_back({.what = std::move(what), .deadline = deadline, .answer = std::move(answer)});
}

Status RedisLink::step(short revents, Time now) {
  if (!connected_) FRESHET_TRY(check_connected(revents));
  if (connected_) {
    if (unwritten_) FRESHET_TRY(write());
    if ((revents & (POLLIN | POLLERR | POLLHUP)) != 0) FRESHET_TRY(read());
    FRESHET_TRY(greeted_);
    if (unwritten_) FRESHET_TRY(write());
  }
  if (now >= deadline()) return fail(broken(connected_ ? "no answer" : "no connection in time"));
  return {};
}

Status RedisLink::check_connected(short revents) {
  if ((revents & (POLLOUT | POLLERR | POLLHUP)) == 0) return {};
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return fail(broken(system_words(error)));
  connected_ = true;
  return {};
}

Status RedisLink::write() {
  int done = 0;
  if (redisBufferWrite(context_.get(), &done) != REDIS_OK) return fail(broken(context_->errstr));
  unwritten_ = done == 0;
  return {};
}

Status RedisLink::read() {
  for (int i = 0; i < kReadsPerStep; ++i) {
    const std::size_t before = context_->reader->len;
    if (redisBufferRead(context_.get()) != REDIS_OK) return fail(broken(context_->errstr));
    const bool got = context_->reader->len != before;
    FRESHET_TRY(take_replies());
    if (context_->reader->len - context_->reader->pos > kUnreadBytesMax) {
      return fail(broken("an answer is too long"));
    }
    if (!got) break;
  }
  return {};
}

Status RedisLink::take_replies() {
  for (;;) {
    void* object = nullptr;
    if (redisGetReplyFromReader(context_.get(), &object) != REDIS_OK) {
      return fail(broken(context_->reader->err == REDIS_ERR_OOM ? "an answer is too long" : context_->errstr));
    }
    if (object == nullptr) return {};
    FRESHET_TRY(take(RedisReply(static_cast<redisReply*>(object))));
  }
}

Status RedisLink::take(RedisReply reply) {
  const auto is_word = [&](const char* word) {
    return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 && reply->element[0]->type == REDIS_REPLY_STRING &&
           reply->element[0]->str != nullptr && std::string_view(reply->element[0]->str) == word;
  };
  if (news_ && is_word("message")) {
    news_(*reply);
    return {};
  }
  if (waiting_.empty()) return fail(broken("an answer came that no command waits for"));
  const Waiting waiting = std::move(waiting_.front());
  waiting_.pop_front();
  if (reply->type == REDIS_REPLY_ERROR) {
    waiting.answer(fail(error_of(*reply, format("{}: {}", name_, waiting.what))));
  } else {
    waiting.answer(std::move(reply));
  }
  return {};
}

void RedisLink::fail_all(const Error& why) {
  while (!waiting_.empty()) {
    const Waiting waiting = std::move(waiting_.front());
    waiting_.pop_front();
    waiting.answer(fail(Code::unavailable, format("{} (the answer to \"{}\" is lost)", why.message(), waiting.what)));
  }
}

Error RedisLink::broken(std::string_view why) const {
  return Error(Code::unavailable, format("{}: {}", name_, shown(why)));
}

}  // namespace freshet
