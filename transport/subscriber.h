// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side. A Subscriber keeps the newest whole version of a model mapped, and hands out snapshots of it that
/// stay as they are until they are dropped, whatever the publisher does, and whether it lives.
///
///     auto subscriber = Subscriber::open({.model = "demo"});
///     …
///     Snapshot model = (*subscriber)->snapshot();   // no lock, no allocation
///     Bytes kernel = model.bytes(3);

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/manifest.h"
#include "core/result.h"
#include "core/tensor.h"
#include "transport/current.h"
#include "transport/security.h"

namespace freshet {

class PublisherHub;

namespace detail {
struct ServedVersion;
struct PinSlot;
}  // namespace detail

/// A pinned version: everything read through it belongs to that one version. Empty until a first version has come.
/// Movable; dropping it never blocks. One thread at a time; different snapshots are independent. Must not outlive its
/// Subscriber.
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();

  explicit operator bool() const { return version_ != nullptr; }
  /// It came from a member of a group that did not know any more what was decided (SubscriberOptions::when_lapsed).
  bool stale() const { return stale_; }
  VersionNumber version() const;
  const Manifest& manifest() const;
  /// The tensor's bytes, in the publisher's memory, read-only. REQUIRES: tensor < number of tensors.
  Bytes bytes(std::uint32_t tensor) const;
  /// Empty view with not_found when the model has no tensor of that name.
  Result<TensorView> tensor(std::string_view name) const;

  /// The shared memory in which the tensors lie, for who maps it in a way of his own (bindings/python/private_pages.h). Both are
  /// valid for as long as the snapshot is.
  struct Piece {
    int descriptor = -1;
    Bytes memory;  ///< All of the descriptor's bytes, as they are mapped here.
  };
  std::vector<Piece> pieces() const;

 private:
  friend class Subscriber;
  Snapshot(const detail::ServedVersion* version, detail::PinSlot* slot, bool stale)
      : version_(version), slot_(slot), stale_(stale) {}
  void drop();
  const detail::ServedVersion* version_ = nullptr;
  detail::PinSlot* slot_ = nullptr;
  bool stale_ = false;
};

/// What happened on the way of a version to this process.
struct Update {
  VersionNumber version = 0;
  std::uint64_t tensors_fetched = 0;  ///< Whose owner differs from the version before.
  std::uint64_t bytes_fetched = 0;    ///< Of those tensors; where they are fetched, what really came over the channel.
  std::uint64_t gap_before = 0;       ///< Versions dropped before this one, for an `every` subscriber.
  /// From the start of publish() to swapped in; between two hosts, as well as their clocks agree.
  Duration latency{};
  Duration notify{};    ///< From the announcement to this process having read it, or the grant; same host, else 0.
  std::string channel;  ///< "shm", "ucx", "zmq" or "file".
  /// Of the tensors that were fetched over a channel, those that came as an element delta, and those that came whole.
  std::uint64_t tensors_delta = 0;
  std::uint64_t tensors_dense = 0;
  std::uint64_t epoch = 0;  ///< Under which it is current (transport/current.h).
};

/// What a member of a group does once it does not know any more what was decided.
enum class WhenLapsed : std::uint8_t { serve_stale, refuse };

struct SubscriberOptions {
  std::string model;
  /// Address of the publisher's control socket; one of another host needs keys. Several, with commas, in order of
  /// preference (a relay first, the publisher next): one that is silent for a second leads to the next. Empty: ask the
  /// host directory. "file:///mnt/share/demo": no publisher, but a folder of versions (transport/file/weight_folder.h)
  /// that both sides see.
  std::string at;
  std::string directory;  ///< As open_directory() takes it; empty for the default.
  /// Who tells of new versions: "zmq" (or empty), the publisher itself; "redis", the directory, which then must be one
  /// on Redis.
  std::string notifier;
  std::string label;  ///< How `freshet top` shows it; empty: the process's name.
  /// False: the newest version, skipping those in between. True: every version, in order, through next().
  bool every = false;
  /// For `every`: the first version wanted is the one after this; 0 takes what the publisher has.
  VersionNumber after = 0;
  /// The incarnation in the id of that version. With it, a publisher whose numbers began anew (a host's directory
  /// forgets them with the host) is followed from its first version on. 0: not known; `after` is then only a number.
  std::uint64_t after_incarnation = 0;
  /// A member of the group that stages versions and commits them together: what the publisher makes a candidate
  /// (PublisherOptions::group_commit, an activation as group) is fetched and proved beside the served version, and
  /// swapped in when all members have it. It takes by itself what was activated, and its very first version; what was
  /// merely published it takes when it is told to: stage(), commit_staged(). Not with `every`.
  bool staged = false;
  /// A member has lapsed when no publisher has answered it for the membership time (PublisherOptions::membership): the
  /// others may have gone on without it. Until it hears again, snapshots are marked stale, or there are none.
  WhenLapsed when_lapsed = WhenLapsed::serve_stale;
  std::size_t pins_max = 1024;  ///< Snapshots at a time; more get an empty one.
  /// Called on the subscriber's own thread after each swap; must not block for long, may call snapshot().
  std::function<void(const Update&)> on_update;
  const Clock* clock = nullptr;
  SecurityOptions security;  ///< Keys, and the publisher's.

  /// How bytes come: empty or "auto", the best that both ends have; or one kind and no other: "shm", "ucx", "zmq",
  /// "file".
  std::string channel;
  /// Of the memory that versions are fetched into, where they cannot be mapped: copies of the model that are touched
  /// when the first version comes. One is served while the next is fetched into the other.
  double arena_copies = 2.1;
  std::uint64_t arena_limit_bytes = 0;  ///< 0: four times the model, plus 64 MiB.
  bool lock_memory = true;
  /// How long one look takes at all bytes that were fetched, a little at a time, whether they still are what was
  /// proved. What isn't is told (`last_error`) and fetched anew with the next version that has it. 0: never.
  Duration scrub_interval = std::chrono::minutes(10);
  /// Serves again, through this hub (open_publisher_hub), what is fetched: neighbours on this host map it, other hosts
  /// fetch it from here. Needs `at`, where the hub's directory is one of this host: there the relay is found under the
  /// model's name.
  std::shared_ptr<PublisherHub> relay;
  std::size_t relay_keep_versions = 2;  ///< Kept for those downstream though nobody holds them.
};

struct SubscriberStatus {
  bool connected = false;  ///< A publisher answers.
  VersionNumber serving = 0;
  VersionNumber newest_known = 0;
  std::uint64_t updates = 0;
  std::uint64_t bytes_fetched = 0;
  std::uint64_t gaps = 0;
  /// Why the last version was refused or could not be fetched, or why the publisher cannot be reached (a key that it
  /// does not know); empty when all is well.
  std::string directory;  ///< How the directory is ("reachable"); empty when an address was given.
  std::string last_error;
  std::uint64_t epoch = 0;   ///< Under which it is served.
  CurrentVersion current;    ///< What the publisher last said is current.
  VersionNumber staged = 0;  ///< Ready to be swapped in; 0: nothing.
  bool stale = false;        ///< A member that has lapsed.
};

/// How new a snapshot must be.
struct SnapshotRequest {
  VersionNumber min_version = 0;
  /// What is served must have been current so long ago or later, by the publisher's word; 0: asked after the call
  /// began.
  std::optional<Duration> max_staleness;
  Duration at_most = std::chrono::seconds(5);  ///< How long to wait for that.
};

/// snapshot() and status(): any thread, never blocking. The rest: any thread.
///
/// In a child that this process forks it is dead: snapshot() is empty, the other calls are failed_precondition,
/// status() says so in `last_error`, and destroying it does nothing. Snapshots that a child inherits are not protected
/// there, since the parent's pins are its own: take what a child is to read before the fork, or open a subscriber in
/// the child.
class Subscriber {
 public:
  /// Returns at once, connected or not: whoever comes first waits for the other. invalid_argument for a bad name,
  /// address or option.
  static Result<std::unique_ptr<Subscriber>> open(SubscriberOptions options);
  ~Subscriber();

  /// The version being served, pinned. Wait-free but for a swap at the same instant; no lock, no allocation, no system
  /// call.
  Snapshot snapshot();

  /// A snapshot that is new enough, or the reason why it cannot be had:
  /// timed_out (that version did not come, or no publisher confirmed in time that what is served is current);
  /// failed_precondition (a rollback holds an older version); unavailable (a member that has lapsed and refuses);
  /// out_of_space (all pins are in use).
  Result<Snapshot> snapshot_at_least(const SnapshotRequest& request);

  /// For members: gets that version, which the publisher must still keep, beside the served one, and proves it. The
  /// served one is served on. failed_precondition while the group stages a candidate; not_found; timed_out (it goes
  /// on).
  Status stage(VersionNumber version, Duration at_most);
  /// Swaps in what stage() got, at once, and says which version that is. failed_precondition when there is none, or
  /// when it is the group's to commit.
  Result<VersionNumber> commit_staged();

  /// Waits until a version of at least `version` is served. timed_out otherwise.
  Status wait_for(VersionNumber version, Duration at_most);

  /// The next version in order, for an `every` subscriber (failed_precondition otherwise). timed_out when none came.
  struct Delivery {
    Snapshot snapshot;
    Update update;
  };
  Result<Delivery> next(Duration at_most);

  SubscriberStatus status() const;

 private:
  class Impl;
  explicit Subscriber(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
