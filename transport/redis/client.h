// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A thread that talks to one Redis server, so that nobody else waits for a network: two connections, one for commands
/// and one that listens, made again whenever they break, after a pause that grows. A stopped server is noticed by pings
/// of its own. Says (core/base/log.h) when the server goes away and when it is back.

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "transport/loop_tasks.h"
#include "transport/redis/link.h"

namespace freshet {

struct RedisTimes {
  Duration answer_within = std::chrono::seconds(1);  ///< Later is never: the connection is given up.
  Duration ping_every = std::chrono::seconds(1);
  Duration pause_min = std::chrono::milliseconds(20);  ///< Between attempts to connect.
  Duration pause_max = std::chrono::seconds(1);
  Duration patience = std::chrono::seconds(3);    ///< How long a caller waits for a server that is away.
  Duration lease = std::chrono::seconds(5);       ///< Of a claim.
  Duration look_again = std::chrono::seconds(5);  ///< At models that are followed: news can be lost.
  std::uint64_t numbers_ahead = 1024;
};

class RedisClient {
 public:
  /// What lives on the client's thread beside the connections; all are called there. They may send().
  class Guest {
   public:
    virtual ~Guest() = default;
    virtual void on_commands_ready(Time /*now*/) {}
    virtual void on_news_ready(Time /*now*/) {}
    virtual void on_news(const std::string& /*channel*/, const std::string& /*text*/, Time /*now*/) {}
    virtual void on_away() {}
    /// Does what is due, and says when to be called again.
    virtual Time on_time(Time now) = 0;
  };

  /// The server need not be there. `guests` must outlive stop().
  static Result<std::unique_ptr<RedisClient>> open(RedisAddress address, RedisTimes times);
  ~RedisClient();

  void start(std::vector<Guest*> guests);
  /// Tasks that were posted before are run; whoever waits is answered.
  void stop();

  const RedisTimes& times() const { return times_; }
  const RedisAddress& address() const { return address_; }

  // Any thread.
  /// Runs it on the client's thread; not at all after stop().
  void post(std::function<void()> task) { static_cast<void>(tasks_.post(std::move(task))); }
  /// Waits for the answer: of a server that is away, for the patience. Not on the client's thread.
  Result<RedisReply> call(const std::string& what, RedisWords words);
  /// The same without waiting; `answer` is called on the client's thread.
  void request(std::string what, RedisWords words, RedisAnswer answer);
  std::string health() const FRESHET_EXCLUDES(mutex_);
  bool is_away() const FRESHET_EXCLUDES(mutex_);

  // On the client's thread.
  bool commands_ready() const { return commands_ != nullptr && commands_->ready(); }
  /// Now or never: unavailable when the server is away.
  void send(std::string what, const RedisWords& words, RedisAnswer answer);
  void subscribe(const std::string& channel, RedisAnswer answer);
  void unsubscribe(const std::string& channel);
  bool news_ready() const { return news_ != nullptr && news_->ready(); }

 private:
  struct Request {
    std::string what;
    RedisWords words;
    RedisAnswer answer;
    Time deadline;
  };

  RedisClient(RedisAddress address, RedisTimes times, Wake wake)
      : address_(std::move(address)), times_(times), wake_(std::move(wake)), pause_(times.pause_min) {}

  void run();
  void connect(Time now);
  void poll_all(Time now);
  void step(std::unique_ptr<RedisLink>* link, short revents, Time now);
  void give_up(const Error& why, Time now);
  void note_ready(Time now);
  void ping(Time now);
  void drop_late(Time now);
  void set_health(std::string text, bool away) FRESHET_EXCLUDES(mutex_);
  void on_push(const redisReply& reply, Time now);

  const RedisAddress address_;
  const RedisTimes times_;
  const Wake wake_;
  /// A limit that only a broken caller meets: every task is short, and callers wait for most of theirs.
  LoopTasks tasks_{wake_, /*tasks_max=*/16 * 1024};

  // The thread's.
  std::vector<Guest*> guests_;
  std::unique_ptr<RedisLink> commands_;
  std::unique_ptr<RedisLink> news_;
  bool commands_were_ready_ = false;
  bool news_were_ready_ = false;
  std::deque<Request> requests_;  ///< For when the server is there.
  Duration pause_;
  Time try_at_{};
  Time ping_at_{};
  Time next_guest_time_{};
  bool away_said_ = false;
  Time away_since_{};

  mutable Mutex mutex_;
  bool away_ FRESHET_GUARDED_BY(mutex_) = true;
  std::string health_ FRESHET_GUARDED_BY(mutex_) = "not reached yet";
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace freshet
