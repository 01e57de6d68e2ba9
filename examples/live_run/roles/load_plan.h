// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The load's book of open requests, without sockets or clocks: which request is due, to whom it goes, when it is sent
/// again to somebody else, and when it has failed. Open-loop: arrivals keep their times whatever happens to the
/// answers.
///
/// A request goes to the servers in turn; one that gave no answer for `hedge_after` while something was asked of it is
/// suspect, and is asked first only now and then, to see whether it is back. A request without an answer after
/// `hedge_after` is sent to the next server too, and so on; the first answer counts.

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/clock.h"

namespace freshet::live {

/// One thread at a time.
class LoadPlan {
 public:
  struct Options {
    double rate = 100;
    std::uint32_t servers = 2;
    Duration deadline = std::chrono::seconds(2);
    Duration hedge_after = std::chrono::milliseconds(250);
    Duration probe_every = std::chrono::milliseconds(100);
  };
  LoadPlan(const Options& options, Time start);

  /// A request to put on the wire now.
  struct Send {
    std::uint64_t id = 0;
    std::uint32_t server = 0;
  };
  /// New arrivals, and those to be sent again. Call until it gives nothing.
  std::optional<Send> next_send(Time now);
  /// `send` could not be handed to its server at all: the next call names another.
  void on_unsendable(const Send& send, Time now);
  /// The server has no version yet: as good as no answer, but not a sign of death.
  void on_not_ready(const Send& from, Time now);
  /// Returns the latency, from the time that the request was due, if this is its first answer.
  std::optional<Duration> on_answer(const Send& from, Time now);
  /// Gives up what is past its deadline; returns how many failed.
  std::uint64_t expire(Time now);

  void stop_arrivals() { arriving_ = false; }
  bool idle() const { return open_.empty(); }
  /// When something is to be done next, at the latest.
  Time next_event(Time now) const;

 private:
  struct Open {
    Time due;
    Time sent;
    Time resend_at;
    std::uint32_t last_server = 0;
    std::uint32_t sends = 0;
  };
  struct Server {
    std::optional<Time> waiting_since;  ///< The oldest thing asked since its last answer.
    Time next_probe{};
  };
  bool suspect(std::uint32_t server, Time now) const;
  std::uint32_t choose(Time now, std::optional<std::uint32_t> not_this);
  Send send_to(std::uint64_t id, Open& open, std::uint32_t server, Time now);

  const Options options_;
  const Time start_;
  bool arriving_ = true;
  std::uint64_t arrivals_ = 0;
  std::uint32_t turn_ = 0;
  std::unordered_map<std::uint64_t, Open> open_;
  std::deque<std::uint64_t> by_deadline_;  ///< Ids in order of sending; may hold ids that are done.
  std::deque<std::pair<Time, std::uint64_t>> resends_;
  std::vector<Server> servers_;
};

}  // namespace freshet::live
