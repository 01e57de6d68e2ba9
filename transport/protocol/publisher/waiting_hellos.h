// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Hellos that were refused because nobody here publishes their model: a subscriber may come before its publisher, or
/// be left by one that is opened again. A hub that takes in a model answers them as if they came then, so that no
/// subscriber's pause after a refusal is waited out. Handed a time; does no I/O. One thread at a time.

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "transport/protocol/publisher/actions.h"

namespace freshet::protocol {

class WaitingHellos {
 public:
  /// A refused subscriber says Hello again after a second, so an older one is of a subscriber that is gone.
  static constexpr Duration kKeptFor = std::chrono::seconds(2);
  static constexpr std::size_t kMax = 1024;

  struct Waiting {
    Peer peer;
    Hello hello;
    std::string key;  ///< With which the peer proved itself.
    Time until{};
  };
  /// Keeps one for each peer, its last. Keeps none while `kMax` peers wait, nor one that claims a session.
  void add(const Peer& peer, const Hello& hello, std::string_view key, Time now);
  /// Notes that this peer's session ended before its Hello was answered.
  void forget(const Peer& peer, SessionId session);
  /// The Hellos for that model; they do not wait any more.
  std::vector<Waiting> take(std::string_view model, Time now);

 private:
  std::map<Peer, Waiting> waiting_;
};

}  // namespace freshet::protocol
