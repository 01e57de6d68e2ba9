// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The data channels of a hub: their servers, and the desk that they answer from. Any thread, but for what is marked.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "transport/protocol/publisher/actions.h"
#include "transport/source/channel_servers.h"
#include "transport/source/fetch_desk.h"

namespace freshet {

class DataChannels {
 public:
  /// `on_closed`: nothing is read under that lease any more.
  explicit DataChannels(std::function<void(protocol::LeaseId)> on_closed);
  /// Once, before there is a lease.
  Status open(const source::ChannelServersOptions& options);
  std::vector<protocol::ChannelOffer> offers() const;

  /// Memory that versions will lie in, for the channels that want to know it once; and before it is unmapped, when no
  /// model has it any more. May take as long as pinning it does.
  void register_memory(Bytes memory);
  void forget_memory(const std::vector<Bytes>& memory);
  /// More of a version that is coming is there.
  void look_again();
  std::vector<channel::ChannelStat> stats() const;

  // The hub's thread.

  void open_lease(protocol::LeaseId lease, source::FetchDesk::Lease lent) { desk_.open_lease(lease, std::move(lent)); }
  void close_lease(const protocol::action::CloseLease& lease);
  /// Whoever fetches from these is cut off: none of their memory is read when this returns.
  void close_all_of(const source::ServedSegments& segments);
  /// The leases under which something was sent since the last call, and how many bytes.
  std::vector<std::pair<protocol::LeaseId, std::uint64_t>> take_sent() { return desk_.take_sent(); }
  /// That version came.
  void keep_deltas_of(const source::ComingVersion& coming) { desk_.keep_deltas_of(coming); }

 private:
  void cut_off(protocol::SessionId session);

  source::FetchDesk desk_;
  std::vector<std::unique_ptr<channel::ChannelServer>> servers_;  ///< They answer from the desk, so they go first.
};

}  // namespace freshet
