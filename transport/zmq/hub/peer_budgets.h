// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What each peer of the control socket may ask for: so many messages and so many bytes of answers a second, which it
/// can save up for about a second. What goes beyond is dropped; every request of this protocol is repeated by whoever
/// means it. One thread at a time.

#include <cstdint>
#include <map>
#include <string>

#include "core/base/clock.h"

namespace freshet {

class PeerBudgets {
 public:
  struct Limits {
    double messages_per_second = 4000;
    double answer_bytes_per_second = 64.0 * (1 << 20);
  };
  explicit PeerBudgets(Limits limits) : limits_(limits) {}

  enum class Verdict : std::uint8_t {
    take,
    drop,
    put_out,  ///< It sends far more than it may, and does not stop.
  };
  /// A message came from that peer, by that connection (-1: unknown).
  Verdict on_message(const std::string& peer, int connection, Time now);
  /// Whether something large may be answered now; on_answer() tells what it came to.
  bool may_answer(const std::string& peer) const;
  void on_answer(const std::string& peer, std::uint64_t bytes);
  int connection_of(const std::string& peer) const;

 private:
  struct Budget {
    double messages = 0;
    double bytes = 0;
    double dropped = 0;
    Time refilled{};
    int connection = -1;
  };
  void refill(Budget& budget, Time now) const;
  void forget_idle(Time now);

  const Limits limits_;
  std::map<std::string, Budget> peers_;
  std::size_t look_at_ = 256;  ///< So many peers, and the idle ones are forgotten.
};

}  // namespace freshet
