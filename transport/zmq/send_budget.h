// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Sends by a ROUTER socket, and knows how many bytes wait for each peer until ZeroMQ has handed them to the kernel:
/// ZeroMQ's own limit (SNDHWM) counts messages, whatever their size. One thread at a time; outlives its socket or not.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "core/model/tensor.h"

namespace freshet {

class SendBudget {
 public:
  struct Limits {
    /// Beside the largest message that waits for a peer: a peer that takes its time for a large one is sent small ones.
    std::uint64_t peer_bytes = 0;
    std::uint64_t all_bytes = 0;  ///< For all peers together; likewise.
  };
  explicit SendBudget(Limits limits);

  enum class Sent : std::uint8_t {
    yes,
    no_room,  ///< The peer does not read what waits for it, in bytes or (SNDHWM) in messages.
    crowded,  ///< All peers together do not; largest() has most of it.
    no_peer,  ///< It is gone; told by sockets that say so, as about full pipes (ROUTER_MANDATORY).
  };
  /// `owner` keeps `body` until ZeroMQ has done with it, on any thread. `head`, when not empty, is a part before it
  /// that is copied and not counted.
  Sent send(zmq::socket_t& router, const std::string& peer, std::shared_ptr<const void> owner, Bytes body,
            Bytes head = {});

  std::uint64_t waiting(const std::string& peer) const;
  std::string largest() const;
  std::uint64_t waiting() const { return all_.waiting->load(std::memory_order_relaxed); }

 private:
  using Count = std::atomic<std::uint64_t>;
  struct Lent;
  struct Queue {
    std::shared_ptr<Count> waiting = std::make_shared<Count>(0);
    std::uint64_t largest = 0;  ///< Of the messages since nothing waited.

    bool has_room(std::uint64_t bytes, std::uint64_t limit) const;
    void add(std::uint64_t bytes);
  };
  void forget_idle();

  const Limits limits_;
  Queue all_;
  std::map<std::string, Queue> peers_;  ///< Those that something waits for, and a few more.
  std::size_t look_at_ = 0;             ///< So many peers, and the idle ones are forgotten.
};

}  // namespace freshet
