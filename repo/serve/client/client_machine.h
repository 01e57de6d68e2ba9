// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The client's side of one connection as a value: which requests wait for an answer, when to ask whether the server is
/// still there, and which requests will never be answered. No I/O, no clock.
///
/// A connection keeps the order of its messages. So a pong that does not name a request which was sent before its ping,
/// and whose answer has not come, says that the answer was lost.

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "core/base/clock.h"

namespace freshet::rpc {

struct ClientTimes {
  Duration idle_ping = std::chrono::seconds(1);         ///< So that the server knows that its client lives.
  Duration busy_ping = std::chrono::milliseconds(250);  ///< Of silence, while an answer is waited for.
  Duration silence = std::chrono::seconds(3);           ///< A ping without a pong for so long: it is dead or stopped.
};

/// One thread at a time.
class ClientMachine {
 public:
  ClientMachine(ClientTimes times, Time now) : times_(times), heard_(now), pinged_(now) {}

  void on_sent(std::uint64_t request);
  /// Something came. False for a request that nobody waits for.
  bool on_reply(std::uint64_t request, bool is_last, Time now);
  /// The requests that will not be answered.
  std::vector<std::uint64_t> on_pong(const std::vector<std::uint64_t>& running, Time now);
  /// Nobody waits for it any more.
  void on_given_up(std::uint64_t request) { waiting_.erase(request); }

  struct Tick {
    bool ping = false;
    bool dead = false;
  };
  Tick on_tick(Time now);
  Time next_tick() const;

 private:
  Time ping_due() const;

  const ClientTimes times_;
  Time heard_;
  Time pinged_;
  std::optional<std::set<std::uint64_t>> ping_covers_;  ///< A ping is on its way; what was waited for when it was sent.
  std::set<std::uint64_t> waiting_;
};

}  // namespace freshet::rpc
