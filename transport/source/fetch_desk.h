// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The source of the data channels: the leases that the control protocol handed out, and the bytes that each allows to
/// be read. One desk serves all models of a hub; a request that names no living lease of its session learns nothing.
///
/// A lease that is closed admits no new request; when the last that was admitted has ended, `on_closed` is told, and
/// only then may the version's segments be written again (transport/protocol/publisher/publisher_machine.h).
///
/// A lease may be of a version that is itself still coming (coming_version.h): a piece is answered with what comes as
/// it comes, as soon as it is known how it does. When that is a delta from another base than the fetcher has, the piece
/// waits until the tensor is there.
///
/// Any thread.

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/manifest.h"
#include "core/model/memory_kind.h"
#include "transport/channel/channel.h"
#include "transport/source/coming_version.h"
#include "transport/source/delta_cache.h"
#include "transport/source/lease_book.h"
#include "transport/source/served_segments.h"

namespace freshet::source {

class FetchDesk final : public channel::FetchSource {
 public:
  /// `on_closed` is called by whichever thread lets go last, perhaps in close_lease, never under a lock.
  FetchDesk(std::function<void(protocol::LeaseId)> on_closed, std::uint64_t delta_cache_bytes)
      : on_closed_(std::move(on_closed)), deltas_(delta_cache_bytes) {}

  struct Lease {
    protocol::SessionId session = 0;
    std::shared_ptr<const Manifest> manifest;
    std::vector<Bytes> tensors;                ///< By tensor index; they stay until on_closed. None while it comes.
    std::shared_ptr<ServedSegments> segments;  ///< Where bases are looked up.
    std::shared_ptr<ComingVersion> coming;     ///< Null for a version that is there.
    MemoryKind memory = MemoryKind::host;      ///< What tensors and bases lie in: deltas are made in the host's alone.
  };
  void open_lease(protocol::LeaseId id, Lease lease) FRESHET_EXCLUDES(mutex_);
  void close_lease(protocol::LeaseId id) FRESHET_EXCLUDES(mutex_);
  /// Closes every lease whose bases are looked up in `segments`. Returns each session that still reads under such a
  /// lease. The caller cuts these sessions off.
  std::set<protocol::SessionId> close_all_of(const ServedSegments& segments) FRESHET_EXCLUDES(mutex_);
  /// Waits until no session reads under such a lease. REQUIRES: the caller first called close_all_of(), and then cut
  /// off the sessions that it returned. If the caller cuts them off first, one can begin another read before the leases
  /// are closed, and this wait never ends.
  void wait_unread(const ServedSegments& segments) FRESHET_EXCLUDES(mutex_);

  Result<std::unique_ptr<channel::OpenFetch>> open(const channel::FetchRequest& request) override
      FRESHET_EXCLUDES(mutex_);

  /// The leases under which something was sent since the last call, and how many bytes.
  std::vector<std::pair<protocol::LeaseId, std::uint64_t>> take_sent() FRESHET_EXCLUDES(mutex_);

  /// The version came: the deltas that it came as need not be made for those who ask for the same.
  void keep_deltas_of(const ComingVersion& coming);

  DeltaCache::Stat deltas() const { return deltas_.stat(); }

 private:
  class Fetch;
  struct Row : Leased {
    Lease lease;
    std::atomic<std::uint64_t> sent{0};  ///< Bytes, since take_sent().
    bool is_of(const ServedSegments& segments) const { return lease.segments.get() == &segments; }
  };
  void end_read(protocol::LeaseId id) FRESHET_EXCLUDES(mutex_);

  const std::function<void(protocol::LeaseId)> on_closed_;
  DeltaCache deltas_;
  mutable Mutex mutex_;
  CondVar read_ended_;
  LeaseBook<Row> leases_ FRESHET_GUARDED_BY(mutex_);
};

}  // namespace freshet::source
