// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The time of a simulated world, and the way to its store: calls are delayed, lost, answered late or never, done late
/// and done twice. All of it comes from one seed.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "tests/repo/log/log_oracle.h"

namespace freshet::sim {

/// One thread at a time.
class LogNetwork {
 public:
  LogNetwork(std::uint64_t seed, std::int64_t grace_s) : oracle_(grace_s), random_(seed) {
    faults_ = 0.2 + 0.8 * unit();
    store_offset_ = static_cast<std::int64_t>(below(100'000));
  }

 protected:
  static constexpr Duration kMillisecond = std::chrono::milliseconds(1);
  static constexpr Duration kSecond = std::chrono::seconds(1);

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t draw() { return random_(); }
  double unit() { return std::uniform_real_distribution<>(0, 1)(random_); }
  bool chance(double p) { return unit() < p; }
  bool fault(double p) { return !quiet_ && unit() < p * faults_; }
  Duration some(Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>((most - least).count()) + 1)));
  }
  log::LogId draw_id() { return {.high = random_(), .low = random_()}; }

  void at(Duration delay, std::function<void()> act) {
    events_.push_back({now_ + delay, ++order_, std::move(act)});
    std::push_heap(events_.begin(), events_.end());
  }

  void run_until(Time end) {
    while (!events_.empty() && events_.front().at <= end && oracle_.violation().empty() && own_violation_.empty()) {
      std::pop_heap(events_.begin(), events_.end());
      const Event event = std::move(events_.back());
      events_.pop_back();
      now_ = std::max(now_, event.at);
      ++events_done_;
      event.act();
    }
    now_ = std::max(now_, end);
  }

  /// One call, as a network and a store treat it. `told` gets one answer.
  void send(log::Call call, std::function<void(const log::Answer&)> told, Duration slower = Duration(0));
  log::Answer apply(const log::Call& call);

  LogOracle oracle_;
  bool quiet_ = false;  ///< No faults.
  std::string own_violation_;
  Time now_ = Time(std::chrono::hours(1));
  std::uint64_t events_done_ = 0;
  std::uint64_t late_writes_ = 0;

 private:
  struct Event {
    Time at;
    std::uint64_t order = 0;
    std::function<void()> act;
    bool operator<(const Event& other) const { return std::pair(at, order) > std::pair(other.at, other.order); }
  };

  std::int64_t store_unix_s() const { return store_offset_ + now_.time_since_epoch() / kSecond; }
  std::mt19937_64 random_;
  double faults_ = 1;
  std::int64_t store_offset_ = 0;
  std::uint64_t order_ = 0;
  std::vector<Event> events_;
  std::map<std::string, Time> made_;
};

}  // namespace freshet::sim
