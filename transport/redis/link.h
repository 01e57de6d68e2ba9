// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One connection to Redis that never blocks: its owner polls the descriptor and calls step(). Commands are answered in
/// the order in which they were sent, each before its deadline, or the link is broken: an answer that comes late could
/// not be told from the next one's. What a server sends is limited before it is looked at.

#include <hiredis/hiredis.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "transport/redis/address.h"
#include "transport/redis/reply.h"

namespace freshet {

using RedisWords = std::vector<std::string>;
/// A reply that is an error comes as that error.
using RedisAnswer = std::function<void(Result<RedisReply>)>;

/// One thread. Callbacks are called from step() and break(); they may send().
class RedisLink {
 public:
  /// Starts to connect, and to authenticate and choose the database. Only looking a host's name up may take time.
  static Result<std::unique_ptr<RedisLink>> open(const RedisAddress& address, Time deadline);
  ~RedisLink();

  int descriptor() const { return context_->fd; }
  short events() const;
  /// When the next answer must have come; the end of time when none is awaited.
  Time deadline() const;
  /// Everything that was said first was answered: commands get through.
  bool ready() const { return ready_; }

  /// `what` names the command in errors; the words are never shown.
  void send(std::string what, const RedisWords& words, Time deadline, RedisAnswer answer);
  /// From now on, what comes is news, but for as many confirmations as were asked for: the link only listens.
  void listen(std::function<void(const redisReply&)> news) { news_ = std::move(news); }

  /// Writes and reads what it can. An error breaks the link: close it with fail_all().
  Status step(short revents, Time now);
  /// Answers everybody who waits.
  void fail_all(const Error& why);

 private:
  struct Waiting {
    std::string what;
    Time deadline;
    RedisAnswer answer;
  };
  struct ContextDelete {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  using Context = std::unique_ptr<redisContext, ContextDelete>;

  RedisLink(Context context, std::string name, Time deadline)
      : context_(std::move(context)), name_(std::move(name)), connect_deadline_(deadline) {}
  void greet(const RedisAddress& address, Time deadline);
  Status check_connected(short revents);
  Status write();
  Status read();
  Status take_replies();
  Status take(RedisReply reply);
  Error broken(std::string_view why) const;

  const Context context_;
  const std::string name_;
  const Time connect_deadline_;
  bool connected_ = false;
  bool ready_ = false;
  bool unwritten_ = true;
  std::deque<Waiting> waiting_;
  Status greeted_;  ///< What the server said to the password and the database.
  std::function<void(const redisReply&)> news_;
};

}  // namespace freshet
