// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A simulated connection of a data channel, as both of its ends see it. In order, and nothing is lost while it stands;
/// it may break at any time, which each end hears of later.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/model/tensor.h"
#include "transport/protocol/messages.h"

namespace freshet::sim {

class SimSubscriber;
class Source;

/// One connection to a door. A session may knock again, so the two ends know it by its id.
struct Knock {
  std::string door;
  protocol::SessionId session = 0;
  std::uint64_t token = 0;
  std::uint64_t id = 0;
};

struct Connection {
  SimSubscriber* client = nullptr;
  std::uint64_t client_life = 0;
  protocol::SessionId session = 0;
  protocol::ChannelOffer offer;
  Source* server = nullptr;
  std::uint64_t server_life = 0;
  bool server_end = false;
  Time next_arrival{};   ///< At the client: in order.
  bool flipped = false;  ///< Bits were turned on their way to the client, here or before.
};
using ConnectionPointer = std::shared_ptr<Connection>;

struct FetchOrder {
  std::uint64_t request = 0;
  protocol::SessionId session = 0;
  protocol::LeaseId lease = 0;
  VersionNumber number = 0;
  std::vector<std::uint32_t> tensors;
  bool is_a_lie = false;  ///< For the simulator alone: whoever answers it breaks a rule.
};

}  // namespace freshet::sim
