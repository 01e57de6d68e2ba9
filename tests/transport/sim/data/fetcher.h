// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fetching end of the data channels in one life of a subscriber's process: one connection at a time, one version
/// at a time into the process's own arena, and the proof of what came.

#include <functional>
#include <memory>
#include <optional>

#include "tests/transport/sim/connection.h"
#include "tests/transport/sim/data/coming.h"
#include "tests/transport/sim/data/own_arena.h"
#include "transport/protocol/subscriber/subscriber_machine.h"

namespace freshet::sim {

class Fetcher {
 public:
  /// In the arena, proved, and kept there under that key.
  struct Fetched {
    std::uint64_t kept = 0;
    OwnArena::Plan plan;
    std::shared_ptr<const Manifest> manifest;
  };
  struct Events {
    std::function<void(protocol::SessionId)> open;
    std::function<void(protocol::SessionId, Error)> closed;
    std::function<void(protocol::SessionId)> progress;
    std::function<void(Result<Fetched>)> done;
  };
  Fetcher(Host& host, SimSubscriber& owner, Events events);

  OwnArena& arena() { return arena_; }

  void open(const protocol::action::OpenChannel& open);
  void close();
  void fetch(const protocol::Grant& grant, std::shared_ptr<const Manifest> manifest);
  /// Ends the fetch without a word.
  void abandon();

  void connection_made(const ConnectionPointer& connection);
  void connection_lost(const ConnectionPointer& connection);
  void refused(const ConnectionPointer& connection, std::uint64_t request, const Error& why);
  void piece_came(const ConnectionPointer& connection, std::uint64_t request, std::uint32_t tensor,
                  std::uint64_t offset, Bytes piece);
  /// The process is about to die.
  void died();

 private:
  struct Fetch {
    protocol::Grant grant;
    std::shared_ptr<const Manifest> manifest;
    OwnArena::Plan plan;
    std::uint64_t request = 0;
    std::uint64_t bytes_left = 0;
    std::shared_ptr<Coming> coming;  ///< A relay's.
  };
  void order(const Fetch& fetch);
  void tell(const ConnectionPointer& connection, std::function<void()> event);
  void finish();
  void fail_fetch(const Error& why);
  Status prove(const Fetch& fetch);

  Host& host_;
  SimSubscriber& owner_;
  Events events_;
  OwnArena arena_;
  ConnectionPointer connection_;
  std::optional<Fetch> fetch_;
  std::uint64_t last_request_ = 0;
};

}  // namespace freshet::sim
