// SPDX-License-Identifier: Apache-2.0
/// How long a standby takes to own the log after its owner was killed, where the store was away and has just come back.
/// Driven by a seed: requests that came while it was away get no answer until their time is over.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "repo/log/log_machine.h"

namespace freshet::log {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Takeover {
 public:
  explicit Takeover(std::uint64_t seed) : random_(seed) {}

  /// From the moment when the owner is dead and the standby reaches the store.
  Duration run() {
    for (Member& member : members_) start(member);
    owner().machine->claim(now_);
    drain(owner());
    run_until(now_ + seconds(5));
    EXPECT_EQ(owner().machine->role(), Role::owns);
    away_ = now_ + drawn(seconds(1));
    const Time back = away_ + seconds(3) + drawn(seconds(11));  // After 14 s without a store, owners fall silent.
    owner().back = back;
    standby().back = back + drawn(seconds(2));
    const Time killed = back + drawn(seconds(4));
    run_until(killed);
    owner().machine.reset();
    run_until(killed + drawn(milliseconds(500)));  // The standby's connection to the owner is broken.
    const Time claimed = now_;
    is_hard = claimed < standby().back;
    for (Time next = claimed; standby().machine->role() != Role::owns && now_ < claimed + seconds(60);) {
      if (standby().machine->role() == Role::follows && now_ >= next) {
        standby().machine->claim(now_);
        drain(standby());
        next = now_ + seconds(5);
      }
      run_until(now_ + milliseconds(50));
    }
    return now_ - std::max(killed, standby().back);
  }
  bool is_hard = false;  ///< The standby claims before it reaches the store.

 private:
  struct Member {
    std::unique_ptr<LogMachine> machine;
    Time back{};  ///< When the store answers it again.
  };
  Member& owner() { return members_[0]; }
  Member& standby() { return members_[1]; }
  Duration drawn(Duration most) {
    return Duration(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most.count())));
  }

  void start(Member& member) {
    LogOptions options;
    options.self = {.id = {.high = random_(), .low = random_()}, .address = "sim://member", .public_key = ""};
    options.first_token = {.high = random_(), .low = random_()};
    member.machine = std::make_unique<LogMachine>(options, now_);
    drain(member);
    tick(member);
  }
  void tick(Member& member) {
    at(milliseconds(50), [this, &member] {
      if (!member.machine) return;
      member.machine->on_tick(now_);
      drain(member);
      tick(member);
    });
  }
  void drain(Member& member) {
    for (Call& call : member.machine->take_calls()) send(member, std::move(call));
    member.machine->take_ends();
  }
  void send(Member& member, Call call) {
    const bool is_lost = now_ >= away_ && now_ < member.back;
    const Duration until_done = milliseconds(2) + drawn(milliseconds(15));
    const auto answered = [this, &member, ticket = call.ticket](const Answer& answer) {
      if (!member.machine) return;
      member.machine->on_answer(ticket, answer, now_);
      drain(member);
    };
    if (is_lost) {
      Answer none;
      none.kind = std::holds_alternative<call::Create>(call.what) ? Answer::Kind::unsettled : Answer::Kind::failed;
      none.error = Error(Code::timed_out, "no answer");
      return at(call.within, [answered, none] { answered(none); });
    }
    at(until_done, [this, answered, until_done, call = std::move(call)] {
      at(until_done, [answered, answer = apply(call)] { answered(answer); });
    });
  }
  Answer apply(const Call& call) {
    Answer answer;
    answer.kind = Answer::Kind::done;
    answer.unix_s = now_.time_since_epoch() / seconds(1);
    if (const auto* create = std::get_if<call::Create>(&call.what)) {
      const bool made = objects_.emplace(create->key, create->bytes).second;
      answer.kind = made ? Answer::Kind::created : Answer::Kind::exists;
    } else if (const auto* get = std::get_if<call::Get>(&call.what)) {
      const auto found = objects_.find(get->key);
      answer.kind = found == objects_.end() ? Answer::Kind::not_found : Answer::Kind::found;
      if (found != objects_.end()) answer.bytes = found->second;
    }
    return answer;
  }

  void at(Duration delay, std::function<void()> act) { events_.emplace(now_ + delay, std::move(act)); }
  void run_until(Time end) {
    while (!events_.empty() && events_.begin()->first <= end) {
      now_ = events_.begin()->first;
      events_.extract(events_.begin()).mapped()();
    }
    now_ = end;
  }

  std::mt19937_64 random_;
  Time now_ = Time(std::chrono::hours(1));
  Time away_ = Time::max();
  std::multimap<Time, std::function<void()>> events_;
  std::map<std::string, std::string> objects_;
  Member members_[2];
};

TEST(LogTakeover, AStoreThatIsBackDelaysNoStandby) {
  int hard = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Takeover takeover(seed);
    const Duration taken = takeover.run();
    hard += takeover.is_hard ? 1 : 0;
    ASSERT_LE(taken, seconds(8)) << "seed " << seed << ": " << taken / milliseconds(1) << " ms";
  }
  EXPECT_GT(hard, 20);
}

}  // namespace
}  // namespace freshet::log
