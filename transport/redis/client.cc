// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/client.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/log.h"
#include "core/base/text.h"

namespace freshet {
namespace {

constexpr std::size_t kRequestsMax = 4096;
constexpr Duration kClientRound = std::chrono::seconds(1);
constexpr std::size_t kNewsBytesMax = 4096;

void say(const std::string& line) { log_line(LogLevel::warning, "directory " + line); }

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Result<std::unique_ptr<RedisClient>> RedisClient::open(RedisAddress address, RedisTimes times) {
  FRESHET_ASSIGN(Wake wake, Wake::open());
  return std::unique_ptr<RedisClient>(new RedisClient(std::move(address), times, std::move(wake)));
}

RedisClient::~RedisClient() { stop(); }

void RedisClient::start(std::vector<Guest*> guests) {
  guests_ = std::move(guests);
  thread_ = std::thread([this] { run(); });
}

void RedisClient::stop() {
  stopping_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void RedisClient::request(std::string what, RedisWords words, RedisAnswer answer) {
  const auto request = std::make_shared<Request>(Request{.what = std::move(what),
                                                         .words = std::move(words),
                                                         .answer = std::move(answer),
                                                         .deadline = system_clock().now() + times_.patience});
  const bool posted = tasks_.post([this, request] {
    if (commands_ready()) return send(std::move(request->what), request->words, std::move(request->answer));
    if (requests_.size() < kRequestsMax) return requests_.push_back(std::move(*request));
    request->answer(fail(Code::unavailable, address_.text() + ": too many callers wait for it"));
  });
  if (!posted) request->answer(fail(Code::unavailable, address_.text() + ": the directory is closed, or flooded"));
}

Result<RedisReply> RedisClient::call(const std::string& what, RedisWords words) {
  struct Called {
    Mutex mutex;
    CondVar came;
    std::optional<Result<RedisReply>> answer FRESHET_GUARDED_BY(mutex);
  };
  const auto called = std::make_shared<Called>();  // The answer to an interrupted call comes later.
  request(what, std::move(words), [called](Result<RedisReply> answer) {
    const MutexLock lock(called->mutex);
    called->answer = std::move(answer);
    called->came.notify_all();
  });
  // Ends: every request is answered by its deadline, or when the thread stops.
  for (;;) {
    const Time look = Interruption::next_look(deadline_in(kClientRound));
    {
      const MutexLock lock(called->mutex);
      while (!called->answer && called->came.wait_until(called->mutex, look)) continue;
      if (called->answer) return *std::move(called->answer);
    }
    FRESHET_TRY(Interruption::check());
  }
}

std::string RedisClient::health() const {
  MutexLock lock(mutex_);
  return health_;
}

bool RedisClient::is_away() const {
  MutexLock lock(mutex_);
  return away_;
}

void RedisClient::set_health(std::string text, bool away) {
  MutexLock lock(mutex_);
  health_ = std::move(text);
  away_ = away;
}

void RedisClient::send(std::string what, const RedisWords& words, RedisAnswer answer) {
  if (!commands_ready()) return answer(fail(Code::unavailable, address_.text() + ": not connected"));
  commands_->send(std::move(what), words, system_clock().now() + times_.answer_within, std::move(answer));
}

void RedisClient::subscribe(const std::string& channel, RedisAnswer answer) {
  if (!news_ready()) return answer(fail(Code::unavailable, address_.text() + ": not connected"));
  news_->send("subscribe", {"SUBSCRIBE", channel}, system_clock().now() + times_.answer_within, std::move(answer));
}

void RedisClient::unsubscribe(const std::string& channel) {
  if (!news_ready()) return;
  news_->send("unsubscribe", {"UNSUBSCRIBE", channel}, system_clock().now() + times_.answer_within, [](const auto&) {});
}

void RedisClient::run() {
  // hiredis writes with write(): a connection that ended must be an error, not the end of somebody's process.
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  away_since_ = system_clock().now();
  while (!stopping_) {
    const Time at = system_clock().now();
    if (commands_ == nullptr && at >= try_at_) connect(at);
    poll_all(at);
    tasks_.run();
    const Time then = system_clock().now();
    note_ready(then);
    ping(then);
    drop_late(then);
    next_guest_time_ = Time::max();
    for (Guest* guest : guests_) next_guest_time_ = std::min(next_guest_time_, guest->on_time(then));
  }
  tasks_.run_last();
  const Error closed(Code::cancelled, address_.text() + ": the directory was closed");
  for (auto* link : {&commands_, &news_}) {
    if (const auto last = std::move(*link)) last->fail_all(closed);
  }
  for (Request& request : requests_) request.answer(fail(closed));
  requests_.clear();
}

void RedisClient::connect(Time at) {
  commands_were_ready_ = news_were_ready_ = false;
  const Time deadline = at + times_.answer_within;
  auto commands = RedisLink::open(address_, deadline);
  auto news = commands ? RedisLink::open(address_, deadline) : Result<std::unique_ptr<RedisLink>>(nullptr);
  if (!commands || !news) return give_up(commands ? news.error() : commands.error(), at);
  commands_ = std::move(*commands);
  news_ = std::move(*news);
  news_->listen([this](const redisReply& reply) { on_push(reply, system_clock().now()); });
}

void RedisClient::poll_all(Time at) {
  std::array<pollfd, 3> items{};
  items[0] = {.fd = wake_.descriptor(), .events = POLLIN, .revents = 0};
  items[1] = {.fd = -1, .events = 0, .revents = 0};
  items[2] = {.fd = -1, .events = 0, .revents = 0};
  Time until = std::min(at + kClientRound, next_guest_time_);
  if (commands_ != nullptr) {
    items[1] = {.fd = commands_->descriptor(), .events = commands_->events(), .revents = 0};
    items[2] = {.fd = news_->descriptor(), .events = news_->events(), .revents = 0};
    until = std::min({until, commands_->deadline(), news_->deadline(), ping_at_});
  } else {
    until = std::min(until, try_at_);
  }
  for (const Request& request : requests_) until = std::min(until, request.deadline);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(Duration::zero(), until - at));
  if (::poll(items.data(), items.size(), static_cast<int>(wait.count())) < 0) return;
  wake_.acknowledge();
  const Time then = system_clock().now();
  if (commands_ != nullptr) step(&commands_, items[1].revents, then);
  if (news_ != nullptr) step(&news_, items[2].revents, then);
}

void RedisClient::step(std::unique_ptr<RedisLink>* link, short revents, Time at) {
  if (const Status status = (*link)->step(revents, at); !status) give_up(status.error(), at);
}

void RedisClient::give_up(const Error& why, Time at) {
  std::string reason = why.message();
  if (const std::string prefix = address_.text() + ": "; reason.starts_with(prefix)) reason.erase(0, prefix.size());
  // Both, also when one broke: news that went by while one was deaf must be asked for anyway.
  const auto commands = std::move(commands_);
  const auto news = std::move(news_);
  if (!away_said_) {
    away_said_ = true;
    if (commands_were_ready_) away_since_ = at;
    say(format("{} is away: {}; subscribers go on serving their versions", address_.text(), reason));
    for (Guest* guest : guests_) guest->on_away();
  }
  set_health(format("away for {:.1f} s: {}", seconds(at - away_since_), reason), true);
  commands_were_ready_ = news_were_ready_ = false;
  try_at_ = at + pause_;
  // A password that is refused will not be right a moment later.
  pause_ = why.code() == Code::failed_precondition ? times_.pause_max : std::min(times_.pause_max, 2 * pause_);
  if (commands != nullptr) commands->fail_all(why);
  if (news != nullptr) news->fail_all(why);
  if (why.code() != Code::failed_precondition) return;
  // Nor is there anything to wait for.
  std::deque<Request> requests = std::move(requests_);
  requests_.clear();
  for (Request& request : requests) request.answer(fail(why));
}

void RedisClient::note_ready(Time at) {
  if (commands_ready() && !commands_were_ready_) {
    commands_were_ready_ = true;
    pause_ = times_.pause_min;
    ping_at_ = at + times_.ping_every;
    if (away_said_) say(format("{} is back after {:.1f} s", address_.text(), seconds(at - away_since_)));
    away_said_ = false;
    set_health("reachable", false);
    for (Guest* guest : guests_) guest->on_commands_ready(at);
    std::deque<Request> requests = std::move(requests_);
    requests_.clear();
    for (Request& request : requests) send(std::move(request.what), request.words, std::move(request.answer));
  }
  if (news_ready() && !news_were_ready_) {
    news_were_ready_ = true;
    for (Guest* guest : guests_) guest->on_news_ready(at);
  }
}

void RedisClient::ping(Time at) {
  if (commands_ == nullptr || at < ping_at_) return;
  ping_at_ = at + times_.ping_every;
  for (RedisLink* link : {commands_.get(), news_.get()}) {
    if (link->ready()) link->send("ping", {"PING"}, at + times_.answer_within, [](const auto&) {});
  }
}

void RedisClient::drop_late(Time at) {
  std::vector<Request> late;
  for (auto request = requests_.begin(); request != requests_.end();) {
    if (at < request->deadline) {
      ++request;
      continue;
    }
    late.push_back(std::move(*request));
    request = requests_.erase(request);
  }
  for (Request& request : late) {
    request.answer(fail(Code::unavailable, format("{}: {}: {}", address_.text(), request.what, health())));
  }
}

void RedisClient::on_push(const redisReply& reply, Time at) {
  const auto texts = texts_of(reply, 3);
  if (!texts || texts->size() != 3 || (*texts)[2].size() > kNewsBytesMax) return;
  for (Guest* guest : guests_) guest->on_news((*texts)[1], (*texts)[2], at);
}

}  // namespace freshet
