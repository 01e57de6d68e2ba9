// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a client fetches leased bytes: through one of the data channels that the server offers, straight into the
/// memory of whoever reads, digested as they come. Private to this folder.
///
/// A channel's client is used by one thread at a time, so each read that goes on at the same time has a connection of
/// its own; they are kept for the next. Whatever goes wrong, the rest is to be asked for in another way: a fetch that
/// ends early says what it has, and a channel that failed is not chosen for a while.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/channel/channel.h"
#include "transport/protocol/channel_selector.h"
#include "transport/subscribe/fetch/channel_openers.h"

namespace freshet::rpc {

/// One part of a lease.
struct BulkPart {
  MutableBytes out;
  bool is_digested = true;
  bool came = false;  ///< All of it, with this digest.
  Digest digest;
};

/// The lease of a server, as its client understood it.
struct BulkLease {
  protocol::SessionId session = 0;
  channel::LeaseId lease = 0;
  VersionNumber version = 0;
  Duration lifetime{};
  std::uint64_t piece_bytes = 0;
  bool same_host = false;
  std::vector<protocol::ChannelOffer> channels;
  std::function<void()> renew;  ///< Says so to the server; never waits.
};

/// Any thread.
class BulkReader {
 public:
  struct Options {
    ChannelOpeners openers;
    bool trusted_fabric = false;
    std::optional<protocol::ChannelKind> only;  ///< No other is taken.
    Duration stall = std::chrono::seconds(3);   ///< Nothing comes for so long.
  };
  explicit BulkReader(Options options);
  ~BulkReader();

  /// Fills the parts, which are the lease's, in their order, and tells of each whether it came. Nothing is written into
  /// them once it has returned. Takes as long as bytes come, and `stall` at most once they do not. The error says why
  /// something did not come.
  Status fetch(const BulkLease& lease, std::span<BulkPart> parts) FRESHET_EXCLUDES(mutex_);

 private:
  class Fetching;
  struct Connection {
    protocol::ChannelOffer offer;
    std::unique_ptr<channel::ChannelClient> client;
    std::uint64_t requests = 0;  ///< That were numbered.
  };
  static constexpr std::size_t kIdleMax = 8;

  Result<Connection> take(const BulkLease& lease) FRESHET_EXCLUDES(mutex_);
  Status fetch_through(Connection connection, const BulkLease& lease, std::span<BulkPart> parts, std::uint64_t& bytes)
      FRESHET_EXCLUDES(mutex_);
  void keep(Connection connection) FRESHET_EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  protocol::ChannelSelector selector_ FRESHET_GUARDED_BY(mutex_);
  std::deque<Connection> idle_ FRESHET_GUARDED_BY(mutex_);  ///< The one that was used last at the end.
  std::uint64_t bytes_read_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet::rpc
