// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side. A Subscriber keeps the newest whole version of a model mapped, and hands out snapshots of it. A
/// snapshot stays unchanged until it is dropped, even if the publisher dies.
///
///     auto subscriber = Subscriber::open({.model = "demo"});
///     …
///     Snapshot model = (*subscriber)->snapshot();   // no lock, no allocation
///     Bytes kernel = model.bytes(3);

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/manifest.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"
#include "transport/channel_kind.h"
#include "transport/current.h"
#include "transport/security.h"

namespace freshet {

class PublisherHub;

namespace gpu {
class Collective;
class Device;
struct Uuid;
}  // namespace gpu

namespace detail {
struct ServedVersion;
struct PinSlot;
struct ReceivedDelta;
}  // namespace detail

/// A pinned version: all reads through a snapshot belong to this version. Empty until a first version has come.
/// Movable. One thread at a time; different snapshots are independent.
///
/// A snapshot may outlive its Subscriber. It keeps its version's memory mapped. A living publisher does not write
/// these bytes before the snapshot is dropped. When the publisher has ended, nobody can write them. Dropping a snapshot
/// never blocks. After the subscriber's end, the last snapshot of a version also unmaps the version.
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();

  explicit operator bool() const { return version_ != nullptr; }
  /// True: the snapshot comes from a member that had lapsed and may not know the current version
  /// (SubscriberOptions::when_lapsed).
  bool stale() const { return stale_; }
  VersionNumber version() const;
  const Manifest& manifest() const;
  /// The tensor's bytes: read-only; in the publisher's memory if the version is mapped, otherwise in the subscriber's
  /// own memory (SubscriberOptions::arena_copies). Empty if the subscriber does not take this tensor
  /// (SubscriberOptions::whole). REQUIRES: tensor < number of tensors.
  Bytes bytes(std::uint32_t tensor) const;
  /// The kind of memory that all bytes() lie in.
  MemoryKind memory_kind() const { return MemoryKind::host; }
  /// The same bytes in that GPU's memory, read-only, in memory of the publisher's that this process maps: addresses of
  /// the device. Empty where they are not there (Subscriber::take_device_memory). They stay as bytes() do. A stream
  /// that reads them must have done so before the snapshot is dropped.
  Bytes device_bytes(std::uint32_t tensor, const gpu::Uuid& device) const;
  /// For servers with tensors on a GPU (transport/subscribe/device/): the delta by which the tensor came from another
  /// host, since Subscriber::take_device_memory. Null where it came in another way. Stays as bytes() do.
  const detail::ReceivedDelta* delta(std::uint32_t tensor) const;
  /// not_found when the model has no tensor of that name, or it was not taken.
  Result<TensorView> tensor(std::string_view name) const;

  /// The tensors' shared memory, for a program that maps it in another way (bindings/python/stream/private_pages.h).
  /// Descriptor and memory are valid as long as the snapshot.
  struct Piece {
    int descriptor = -1;
    Bytes memory;                         ///< All of the descriptor's bytes, as mapped in this process.
    std::shared_ptr<const void> mapping;  ///< Keeps `memory` mapped, also beyond the snapshot. It holds no version.
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

/// How a version came to this process.
struct Update {
  VersionNumber version = 0;
  std::uint64_t tensors_fetched = 0;  ///< Tensors with another owner than in the version before.
  std::uint64_t bytes_fetched = 0;    ///< Bytes of those tensors; over a channel, the bytes that came.
  std::uint64_t gap_before = 0;       ///< Versions dropped before this one, for an `every` subscriber.
  /// From the start of publish() to the swap. Between two hosts, as exact as their clocks agree.
  Duration latency{};
  /// The time from the announcement until this process has read the announcement. If this process read none: for a
  /// mapped version without `every`, the time from the announcement until this process has read the grant; otherwise 0.
  /// From another host the value has no meaning: the clocks differ.
  Duration notify{};
  /// "shm", "ucx", "nccl", "zmq" or "file"; "cuda_ipc" if some of a mapped version's tensors lie in the GPU's memory
  /// too.
  std::string channel;
  /// Of the tensors fetched over a channel: those that came as an element delta, and those that came whole.
  std::uint64_t tensors_delta = 0;
  std::uint64_t tensors_dense = 0;
  std::uint64_t epoch = 0;  ///< The epoch in which the version is current (transport/current.h).
};

/// What a lapsed member of a group does.
enum class WhenLapsed : std::uint8_t { serve_stale, refuse };

/// The source of news about versions. `directory`: the directory must be on Redis.
enum class Notifier : std::uint8_t { publisher, directory };

struct SubscriberOptions {
  std::string model;
  /// Addresses of the publisher's control socket, in order of preference (a relay first, then the publisher). If one is
  /// silent for a second, the subscriber tries the next. An address on another host needs keys. Empty: ask the
  /// directory. "file:///mnt/share/demo" alone: no publisher, but a folder of versions (transport/file/weight_folder.h)
  /// that both sides see.
  std::vector<std::string> at;
  std::string directory;  ///< As PublisherHubOptions has it.
  Notifier notifier = Notifier::publisher;
  std::string label;  ///< The subscriber's name in `freshet top`; empty: the process's name.
  /// False: the newest version, skipping those in between. True: every version, in order, through next().
  bool every = false;
  /// For `every`: begin with the version after this one. 0: begin with the versions that the publisher keeps.
  VersionNumber after = 0;
  /// The incarnation in the id of version `after`. A publisher's numbers may begin anew (a host's directory loses them
  /// with the host). If the incarnation is given and the numbers began anew, the subscriber takes all versions from the
  /// publisher's first one on. 0: not known; `after` is then only a number.
  std::uint64_t after_incarnation = 0;
  /// True: a member of the group, which stages versions and commits them together. A candidate is
  /// a version that was published with PublisherOptions::group_commit, or activated with ActivationRequest::as_group. A
  /// member fetches and proves it beside the served version. It swaps the candidate in when all members have it.
  /// Activated versions, and the very first version, install automatically. Other published versions need stage() and
  /// commit_staged(). Not with `every`.
  bool staged = false;
  /// A member has lapsed when no publisher has answered it for the membership time (PublisherOptions::membership). The
  /// other members may have gone on without it. Until a publisher answers again, snapshots are marked stale, or there
  /// are none.
  WhenLapsed when_lapsed = WhenLapsed::serve_stale;
  /// True: also takes the tensors that no server needs (Role::optimizer and Role::opaque), for programs that store
  /// versions. False: fetches none of them, and a snapshot has no bytes of them. A relay takes them, for its followers.
  bool whole = false;
  /// True: the program puts versions to use itself, and says by applied() which one it has put to use; a program that
  /// writes files does. Until then a rollback's answer counts the program among those that do not serve the version yet
  /// (ActivationReport::behind). For `latest`.
  bool applies = false;
  std::size_t pins_max = 1024;  ///< Snapshots at a time; beyond them, snapshot() returns an empty one.
  /// Called on the subscriber's own thread after each swap; must not block for long, may call snapshot().
  std::function<void(const Update&)> on_update;
  const Clock* clock = nullptr;
  SecurityOptions security;                     ///< The subscriber's own keys, and the publisher's public key.
  std::shared_ptr<gpu::Collective> collective;  ///< As PublisherHubOptions has it.

  /// The channel of bytes: this one and no other. Not set: the best one that both ends have.
  std::optional<ChannelKind> channel;
  /// If the subscriber cannot map versions, it fetches them into memory of its own. This is the size of that memory, in
  /// copies of the model. The subscriber touches the memory when the first version comes. One copy is served while the
  /// next version is fetched into the other.
  double arena_copies = 2.1;
  std::uint64_t arena_limit_bytes = 0;  ///< 0: four times the model, plus 64 MiB.
  bool lock_memory = true;
  /// The time of one pass over all fetched bytes. The pass proves them again, a little at a time. A corrupted tensor is
  /// reported (`last_error`), and fetched again with the next version that has it. 0: never.
  Duration scrub_interval = std::chrono::minutes(10);
  /// A relay: serves the fetched versions again through this hub (open_publisher_hub). Neighbours on this host map
  /// them, other hosts fetch them from here. If the hub's directory is a folder of this host, `at` is needed: the
  /// directory lists the relay itself under the model's name.
  std::shared_ptr<PublisherHub> relay;
  std::size_t relay_keep_versions = 2;  ///< Versions kept for subscribers behind the relay, even if nobody holds them.
};

struct SubscriberStatus {
  bool connected = false;  ///< A publisher answers.
  VersionNumber serving = 0;
  VersionNumber newest_known = 0;
  std::uint64_t updates = 0;
  std::uint64_t bytes_fetched = 0;
  std::uint64_t gaps = 0;
  std::uint64_t failures = 0;  ///< Versions that were refused or could not be fetched, each as often as it was tried.
  /// For how long a newer version than the served one has been known; 0: there is none.
  Duration staleness{};
  std::string directory;  ///< The directory's state ("reachable"); empty if an address was given.
  /// The reason why the last version was refused or could not be fetched, or why the publisher cannot be reached (for
  /// example an unknown key). Empty when all is well.
  std::string last_error;
  std::uint64_t epoch = 0;   ///< The epoch of the served version.
  CurrentVersion current;    ///< The current version, as the publisher last reported it.
  VersionNumber staged = 0;  ///< Ready to be swapped in; 0: none.
  bool stale = false;        ///< True: this member has lapsed.
  /// For `every`: the incarnation with which the publisher's numbers began anew. Versions of earlier incarnations had
  /// other numbers. 0: the numbers go on after SubscriberOptions::after. Not set before a publisher has answered.
  std::optional<std::uint64_t> numbers_since;
};

/// How new a snapshot must be.
struct SnapshotRequest {
  VersionNumber min_version = 0;
  /// The publisher must have confirmed the served version as current within this time. 0: after the call began.
  std::optional<Duration> max_staleness;
  Duration at_most = std::chrono::seconds(5);  ///< The longest wait.
};

/// Any thread. snapshot() and status() never block. A call with a stop token ends its wait with `cancelled` when
/// somebody asks for the stop.
///
/// In a forked child the subscriber is dead. snapshot() is empty, the other calls are failed_precondition, status() has
/// the reason in `last_error`, and the destructor does nothing. The pins belong to the parent, so they do not protect
/// snapshots that a child inherits. Copy the bytes for a child before the fork, or open a subscriber in the child.
class Subscriber {
 public:
  /// Returns at once, connected or not. Publisher and subscriber may start in any order. invalid_argument for a bad
  /// name, address or option.
  static Result<std::unique_ptr<Subscriber>> open(SubscriberOptions options);
  /// Requires that no other call is under way. Snapshots may outlive the subscriber.
  ~Subscriber();

  /// The served version, pinned. Wait-free unless a swap is in progress; no lock, no allocation, no system call.
  Snapshot snapshot();

  /// A snapshot that is new enough. Errors:
  ///   timed_out: the version did not come, or no publisher confirmed the served version as current in time.
  ///   failed_precondition: a rollback holds an older version.
  ///   unavailable: this member has lapsed, and WhenLapsed::refuse was chosen.
  ///   out_of_space: all pins are in use.
  Result<Snapshot> snapshot_at_least(const SnapshotRequest& request, const std::stop_token& stop = {});

  /// A snapshot of that version, which the publisher still keeps (PublisherOptions::keep_versions). The subscriber
  /// fetches and proves the version beside the served one, and goes on serving the served one. Only for subscribers
  /// without `every` and without `staged`. One call at a time: others wait. Errors:
  ///   not_found: the publisher does not keep the version.
  ///   timed_out: the version did not come in time.
  ///   out_of_space: all pins are in use.
  ///   failed_precondition: a member (use stage()), or an `every` subscriber (use next()).
  Result<Snapshot> snapshot_of(VersionNumber version, Duration at_most, const std::stop_token& stop = {});

  /// For members: fetches and proves a version beside the served one. The publisher must still keep the version. The
  /// member goes on serving the served version. failed_precondition while the group stages a candidate; not_found;
  /// timed_out (staging goes on).
  Status stage(VersionNumber version, Duration at_most, const std::stop_token& stop = {});
  /// A snapshot of the staged version, pinned, to try it beside the served version before the swap. The snapshot stays
  /// unchanged when the version is swapped in or given up. failed_precondition: no version is staged. out_of_space: all
  /// pins are in use.
  Result<Snapshot> staged_snapshot();
  /// Swaps in the version that stage() staged, and returns its number. failed_precondition if no version is staged, or
  /// if the group has to commit it. After `cancelled`, the swap may still happen.
  Result<VersionNumber> commit_staged(const std::stop_token& stop = {});

  /// Waits until the served version is at least `version`. timed_out otherwise.
  Status wait_for(VersionNumber version, Duration at_most, const std::stop_token& stop = {});

  /// The next version in order, for an `every` subscriber (failed_precondition otherwise). timed_out if none came.
  struct Delivery {
    Snapshot snapshot;
    Update update;
  };
  Result<Delivery> next(Duration at_most, const std::stop_token& stop = {});

  /// With SubscriberOptions::applies: the program has put that version to use. The publisher hears of it with the next
  /// heartbeat.
  void applied(VersionNumber version);

  /// From the next version on, this process also maps the publisher's memory on that GPU, if the publisher keeps
  /// versions there (PublisherOptions::device_memory) and runs on this host as the same user:
  /// Snapshot::device_bytes(). Of versions that come from another host it keeps the deltas: Snapshot::delta(). One GPU
  /// a subscriber: failed_precondition for another one. Does not wait.
  Status take_device_memory(std::shared_ptr<gpu::Device> device);

  /// A descriptor for poll(), select() or epoll: readable when a version was swapped in since the descriptor was last
  /// read. Read its eight bytes first, and take the snapshot afterwards. Readable at once if a version is served. The
  /// subscriber owns the descriptor and closes it at its end; each call gives the same one.
  Result<int> updates_descriptor();

  SubscriberStatus status() const;

 private:
  class Impl;
  explicit Subscriber(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
