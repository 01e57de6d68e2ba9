// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The serving end of the data channels in one life of a process: which leases are open, who is connected, and the
/// transfers under way, which read the arena's real bytes piece by piece, while time passes.

#include <functional>
#include <list>
#include <map>
#include <vector>

#include "tests/transport/sim/connection.h"
#include "tests/transport/sim/data/coming.h"
#include "tests/transport/sim/host.h"
#include "transport/protocol/publisher/publisher_machine.h"

namespace freshet::sim {

class DataServer {
 public:
  struct Books {
    /// The version's places, and who wrote it; nothing when it is not there.
    std::function<const protocol::CommittedVersion*(VersionNumber)> find;
    std::function<std::shared_ptr<Coming>(VersionNumber)> find_coming;
    std::function<void(protocol::LeaseId)> lease_closed;
  };
  DataServer(Host& host, Process& process, std::shared_ptr<ArenaMemory> memory, Books books)
      : host_(host), process_(process), memory_(std::move(memory)), books_(std::move(books)) {}

  void open_lease(const protocol::action::OpenLease& open);
  void close_lease(const protocol::action::CloseLease& close);

  void connect(const ConnectionPointer& connection);
  void closed_by_client(const ConnectionPointer& connection);
  void fetch(const ConnectionPointer& connection, FetchOrder order);
  void acknowledged(const ConnectionPointer& connection, std::uint64_t request);
  void break_one();   ///< Some connection breaks.
  void look_again();  ///< More of what is coming is there, or never will be.
  void died();

  bool could_read(const ArenaMemory& memory, const SegmentPlace& place) const;

 private:
  struct Lease {
    protocol::SessionId session = 0;
    VersionNumber number = 0;
    std::shared_ptr<Coming> coming;
    bool closing = false;
    bool said_closed = false;
  };
  struct Transfer {
    ConnectionPointer connection;
    FetchOrder order;
    std::vector<SegmentPlace> places;  ///< By place in `order.tensors`.
    std::uint64_t writer = 0;          ///< The incarnation that wrote the version.
    std::shared_ptr<Coming> coming;
    bool waits_for_more = false;
    std::size_t next = 0;  ///< In `order.tensors`.
    std::uint64_t offset = 0;
    int on_the_way = 0;
    bool waits = false;    ///< For acknowledgements.
    bool aborted = false;  ///< Its connection is gone; what is in the sender's buffers may be read a while longer.
  };
  using TransferPointer = std::shared_ptr<Transfer>;

  Status check(const FetchOrder& order) const;
  void step(const TransferPointer& transfer);
  /// Of the tensor that is being sent: what could be sent now.
  std::uint64_t bytes_there(const Transfer& transfer) const;
  void send_piece(Transfer& transfer);
  void check_truth(const Transfer& transfer, Bytes bytes) const;
  /// How much of that tensor may be read for the transfer from now on.
  static SegmentPlace readable(const Transfer& transfer, std::size_t index);
  void abort(const TransferPointer& transfer);
  void end(const TransferPointer& transfer);
  void cut(const ConnectionPointer& connection);
  void to_client(const ConnectionPointer& connection, std::function<void()> event);
  bool is_read(protocol::LeaseId lease) const;
  void say_closed(protocol::LeaseId lease);

  Host& host_;
  Process& process_;
  std::shared_ptr<ArenaMemory> memory_;
  Books books_;
  std::map<protocol::LeaseId, Lease> leases_;
  std::vector<ConnectionPointer> connections_;  ///< In a fixed order: a seed repeats its run.
  std::list<TransferPointer> transfers_;
};

}  // namespace freshet::sim
