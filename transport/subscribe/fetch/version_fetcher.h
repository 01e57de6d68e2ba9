// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fetching side of a subscriber: its arena, the present data channel, and the version on its way. The channel's
/// client is polled and carried on from the subscriber's loop, a little at a time, so that heartbeats and news go on
/// while gigabytes come.
///
/// Owned by the subscriber's loop thread; its arena is kept by the versions that lie in it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "transport/protocol/messages.h"
#include "transport/subscribe/fetch/channel_openers.h"
#include "transport/subscribe/fetch/fetch_arena.h"
#include "transport/subscribe/fetch/fetch_install.h"
#include "transport/subscribe/fetch/kept_deltas.h"

namespace freshet::detail {

/// A fetched version's memory: its segments stay as they are as long as this lives. Made and destroyed on the loop's
/// thread, or after it has ended.
class FetchedMemory {
 public:
  FetchedMemory(std::shared_ptr<FetchArena> arena, FetchedVersion version)
      : arena_(std::move(arena)), version_(std::move(version)) {}
  ~FetchedMemory() { arena_->let_go(version_.segments); }
  FetchedMemory(const FetchedMemory&) = delete;
  FetchedMemory& operator=(const FetchedMemory&) = delete;

  const FetchedVersion& version() const { return version_; }
  const std::shared_ptr<FetchArena>& arena() const { return arena_; }
  Bytes bytes(std::uint32_t tensor) const { return arena_->bytes(version_.segments[tensor]); }

 private:
  const std::shared_ptr<FetchArena> arena_;
  const FetchedVersion version_;
};

class VersionFetcher {
 public:
  struct Options {
    FetchArena::Options arena;
    FetchInstall::Options install;
    ChannelOpeners openers;
  };
  explicit VersionFetcher(Options options);
  ~VersionFetcher();

  /// Connects to a channel, instead of any before it. unsupported when this process has none of that kind.
  Status open(protocol::SessionId session, const protocol::ChannelOffer& offer);
  /// Closes the session's channel, if it is the one that is open; a fetch through it ends with `unavailable`, in the
  /// next round.
  void close(protocol::SessionId session);

  /// Begins to fetch a version; what came of it is in a later round. Errors: no channel, no memory. `served` may be
  /// null.
  Status begin(FetchInstall::Job job, const FetchedMemory* served, Time now);
  /// Ends what is being fetched; the next one may begin once is_fetching() is false.
  void give_up(const Error& why);
  bool is_fetching() const { return install_ != nullptr; }
  /// From now on what a delta made is digested in full: somebody here makes wrong ones.
  void prove_deltas_in_full() { options_.install.full_proof = true; }
  /// From the next fetch on, versions have their deltas as a device applies them.
  void keep_deltas_for_device() { options_.install.for_device = true; }
  protocol::SessionId session() const { return session_; }  ///< Whose channel is open; 0 for none.

  int descriptor() const { return channel_.client != nullptr ? channel_.client->descriptor() : -1; }
  /// When the next round is due at the latest.
  Time next_round() const;

  struct Round {
    bool bytes_came = false;
    /// The fetch is over: the version, proved, or why not.
    std::optional<Result<std::shared_ptr<const FetchedMemory>>> fetched;
    FetchTally tally;  ///< Of the fetch that is over.
    Duration took{};
    /// The channel of that session broke. Not to be told of a session whose channel was closed.
    std::optional<Error> died;
    protocol::SessionId session = 0;
  };
  /// Carries on for about `at_most`.
  Round round(Time now, std::chrono::microseconds at_most);

  const std::shared_ptr<FetchArena>& arena() const { return arena_; }

 private:
  void drop_client(const Error& why);
  void register_slabs();

  Options options_;
  const std::shared_ptr<FetchArena> arena_;
  std::unique_ptr<KeptDeltas> kept_;
  Digest prepared_for_;  ///< The architecture that the arena was last prepared for.

  protocol::SessionId session_ = 0;  ///< The channel's; 0 when there is none.
  FetchChannel channel_;
  std::size_t slabs_registered_ = 0;  ///< Of the arena's, with this channel's client.
  bool more_ = false;                 ///< There is something to do without waiting for the descriptor.
  std::uint64_t bytes_seen_ = 0;

  std::unique_ptr<FetchInstall> install_;
  Time began_at_{};
};

}  // namespace freshet::detail
