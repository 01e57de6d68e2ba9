// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A rank's connections to the listening sockets of others: made when one is needed, and rank 0's not again at once
/// when it ended. Owned by the group's loop thread.

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/group/group.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet::group {

class Ways {
 public:
  struct Way {
    Way(ZmqSocket opened, HandshakeParties who) : socket(std::move(opened)), parties(std::move(who)) {}
    ZmqSocket socket;
    HandshakeParties parties;
  };
  struct Options {
    std::string meet;  ///< Where rank 0 listens, in numbers.
    std::optional<KeyPair> keys;
    std::optional<PublicKey> hub_key;               ///< Rank 0's.
    Neighbours neighbours = Neighbours::same_user;  ///< That are believed.
  };
  Ways(zmq::context_t& context, Options options) : context_(context), options_(std::move(options)) {}

  /// Null when there is none and none can be made. `peers`: where ranks listen, as far as that is known.
  Way* to(Rank rank, const std::vector<Peer>& peers);
  /// The same, but for a moment after the last one ended.
  Way* to_hub(const std::vector<Peer>& peers, Time now);
  void close(Rank rank, Time now);
  std::map<Rank, Way>& all() { return ways_; }

 private:
  zmq::context_t& context_;
  const Options options_;
  std::map<Rank, Way> ways_;
  Time connect_after_{};
};

}  // namespace freshet::group
