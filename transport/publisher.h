// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The training loop's side. A Publisher copies tensors into its arena (that copy is all that blocks the loop), and
/// behind the loop digests, compares, seals and announces a new version, and serves it to subscribers.
///
///     auto publisher = Publisher::open({.model = "demo"});
///     …
///     auto receipt = (*publisher)->publish(tensors, {.step = step, .metrics = {{"loss", loss}}});

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/graph.h"
#include "core/manifest.h"
#include "core/result.h"
#include "core/tensor.h"
#include "transport/current.h"
#include "transport/security.h"

namespace freshet {

/// The endpoint that one or several publishers of a process share: its control socket and its loop
/// thread. Any thread. Made by Publisher::open unless one is given.
class PublisherHub;
struct PublisherHubOptions {
  /// Address of the control socket, e.g. "tcp://127.0.0.1:7070"; one that other hosts can reach ("tcp://*:7070") needs
  /// keys. Empty: an ipc address in the host directory's folder.
  std::string listen;
  /// As open_directory() takes it (transport/directory/directory.h): a folder of this host, "redis://…", or empty.
  std::string directory;
  /// Data channels for subscribers that cannot map this host's memory, or are not to: "auto" (where the control socket
  /// listens on TCP, those that make sense there), "none", or kinds with commas, "ucx,zmq".
  std::string channels = "auto";
  /// Keys, and who is admitted.
  SecurityOptions security;
  /// The control socket's address as the directory tells it to others, where `listen` does not say it ("tcp://*:7070",
  /// a forwarded port); several with commas, of which others take the first that they can use. Empty: as it listens;
  /// for every interface, this host's name in a directory of many hosts.
  std::string advertise;
};
Result<std::shared_ptr<PublisherHub>> open_publisher_hub(PublisherHubOptions options);
/// Where its control socket listens, as `--at` takes it on this host.
std::string address_of(const PublisherHub& hub);

struct PublisherStat;
/// Asks the hub at `address` (another process's, mostly) how its publishers and their subscribers are: that of `model`,
/// or all when it is empty. unavailable when no answer came in time, not_found when `model` is not published there,
/// failed_precondition when keys are missing or refused.
Result<std::vector<PublisherStat>> ask_publisher_stat(const std::string& address, const std::string& model,
                                                      Duration at_most, const SecurityOptions& security = {});

struct PublisherOptions {
  std::string model;                  ///< check_model_name() says what is allowed.
  std::shared_ptr<PublisherHub> hub;  ///< Shared with other models; null opens one of its own with the options below.
  PublisherHubOptions hub_options;
  /// The architecture; null makes a guessed chain from the first publish's tensors.
  std::shared_ptr<const Architecture> architecture;
  /// The version that training resumes from, whose bytes the first publish's tensors are compared with by digest: those
  /// that are equal keep their owners, and the lineage goes on. Empty starts a new lineage.
  std::shared_ptr<const Manifest> resume_from;
  RunId run;                       ///< All zero: a random one, or the resumed version's.
  VersionNumber number_floor = 0;  ///< Numbers given out are greater than this.

  std::uint64_t arena_limit_bytes = 0;  ///< 0: four times the model, plus 64 MiB.
  /// Memory touched at the first publish, in copies of the model. Three serve a loop whose subscribers keep up and that
  /// has changes found by comparing; a loop that names few changed tensors needs little more than two.
  double arena_copies = 3.0;
  bool lock_memory = true;
  bool huge_pages = false;

  std::size_t every_queue_versions_max = 64;  ///< Kept for a slow `every` subscriber before a gap is recorded.
  /// So many of the last versions are kept though nobody holds them: what a rollback can go back to, and what a
  /// subscriber that fetches can be sent a difference from. Each needs memory for what changed; the oldest go when room
  /// is needed. 0: two where other hosts may fetch (the hub listens on TCP), otherwise one, the newest.
  std::size_t keep_versions = 0;
  /// Subscribers that were opened `staged` are a group: a version that is published becomes current once all of them
  /// have staged it, for all of them at once. If one has not within `group_within`, or cannot, the version is given up:
  /// it is kept like any other, but nobody serves it (PublisherStat::activation_failure says why), and the next publish
  /// is the next try.
  bool group_commit = false;
  Duration group_within = std::chrono::seconds(10);
  /// A member that was silent for so long is not waited for, and knows that by itself (SubscriberOptions::when_lapsed).
  /// From half a second to an hour; 0: the default of two seconds.
  Duration membership{};
  const Clock* clock = nullptr;  ///< Null: the system's.
};

/// Which tensors changed since the last publish.
class Changed {
 public:
  static Changed all() { return Changed(Kind::all, {}); }
  /// Found by comparing the copy with the last version, behind the loop.
  static Changed find() { return Changed(Kind::find, {}); }
  /// Indices into the tensors given; what isn't named is neither read nor looked at. The first publish takes
  /// everything.
  static Changed only(std::vector<std::uint32_t> tensors) { return Changed(Kind::only, std::move(tensors)); }

 private:
  friend class Publisher;
  enum class Kind : std::uint8_t { all, find, only };
  Changed(Kind kind, std::vector<std::uint32_t> tensors) : kind_(kind), tensors_(std::move(tensors)) {}
  Kind kind_;
  std::vector<std::uint32_t> tensors_;
};

struct PublishOptions {
  std::uint64_t step = 0;
  Metrics metrics;
  Changed changed = Changed::find();
  Tags tags;
  /// The version's number, for whoever passes on versions that were numbered before; 0: the next one.
  /// failed_precondition when it is not above every number given or seen under this name.
  VersionNumber number = 0;
  /// True: publish() returns when the version is sealed and announced, instead of after the copy. For comparisons, and
  /// for loops that must not run ahead of what exists.
  bool sync = false;
  /// Non-null: the tensors have this architecture from now on (a changed shape or dtype is otherwise an error).
  std::shared_ptr<const Architecture> new_architecture;
};

/// What a publish did by the time it returned.
struct PublishReceipt {
  VersionNumber version = 0;
  std::uint64_t captured_tensors = 0;
  std::uint64_t captured_bytes = 0;
  Duration blocked{};  ///< Time in publish(), with the wait that `sync` asks for.
};

/// What a version came to, once it was sealed and announced.
struct CommitReport {
  VersionNumber version = 0;
  std::uint64_t tensors = 0;
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_bytes = 0;
  Duration capture_to_commit{};  ///< From the start of publish() until it was about to be announced.
};

struct SubscriberStat {
  std::string label;  ///< As the subscriber named itself.
  std::int32_t pid = 0;
  bool every = false;
  bool silent = false;  ///< No heartbeat for a second: stopped, or stuck.
  VersionNumber serving = 0;
  std::vector<VersionNumber> held;
  std::uint64_t queued_versions = 0;
  std::uint64_t gaps = 0;    ///< Versions that were dropped for it.
  std::string channel;       ///< By which it last asked for a version.
  std::string channel_why;   ///< Why by that one: what speaks for it, what failed before it; a subscriber's own word.
  std::string serves;        ///< Its own address, if it is a relay.
  bool member = false;       ///< Of the group.
  std::uint64_t epoch = 0;   ///< Under which it serves.
  VersionNumber staged = 0;  ///< Ready to be swapped in; 0: nothing.
  std::string failed;        ///< Why it could not stage a version; empty when it could.
  std::uint32_t behind = 0;  ///< Of a relay: how many behind it do not serve what it serves.
};

struct PublisherStat {
  std::string model;
  VersionNumber newest = 0;
  std::uint64_t model_bytes = 0;
  std::uint64_t versions_published = 0;
  std::uint64_t versions_skipped = 0;  ///< publish() calls answered out_of_space.
  std::uint64_t bytes_published = 0;   ///< Of changed tensors.
  std::uint64_t arena_bytes = 0;
  std::uint64_t arena_free_bytes = 0;
  std::uint64_t locked_bytes = 0;
  std::string directory;  ///< How the directory is: "reachable", or since when it is away and why.
  CurrentVersion current;
  /// Whether it is kept here. A version that is held goes with the publisher's process; its successor keeps the hold,
  /// but cannot give it to newcomers: they wait for a release.
  bool current_kept = true;
  VersionNumber candidate = 0;     ///< Being staged by the group; 0: nothing.
  std::string activation_failure;  ///< Of the last activation or candidate; empty when it went well.
  Duration mixed{};                ///< ActivationReport::mixed of the last activation.
  std::vector<SubscriberStat> subscribers;
};

/// One thread publishes at a time; the rest may be called from any thread.
///
/// In a child that this process forks it is dead: the child has neither the name, nor the sockets, nor the memory of
/// the versions, each call is failed_precondition (stat() is empty), and destroying it does nothing. A name, a port and
/// versions therefore end with the process that opened it, whatever data loaders it left. The child may open a
/// publisher of its own, of another model.
class Publisher {
 public:
  /// already_exists when a living publisher of this host has the name; the message has its process id.
  static Result<std::unique_ptr<Publisher>> open(PublisherOptions options);
  /// Waits for versions in the making, then stops serving. Subscribers keep what they have mapped.
  ~Publisher();

  /// Copies `tensors` (all of the model's, always in the same order) and returns; the version follows. Blocks for the
  /// copy, and for the commit of the publish before the last when the loop is faster than the digests.
  ///
  /// Errors: invalid_argument (no tensors, a tensor's size contradicts its spec, duplicate names, an index out of range);
  /// failed_precondition (names, dtypes or shapes differ from the architecture and no new one was given);
  /// out_of_space (readers hold too much of the arena: this version is skipped, the loop goes on, and the changes are
  /// carried: the next publish captures them too).
  Result<PublishReceipt> publish(std::span<const TensorView> tensors, PublishOptions options);

  /// The report of a version, when it is sealed. timed_out at the deadline; not_found for one that was never started or
  /// is older than the last 1024.
  Result<CommitReport> wait_committed(VersionNumber version, Duration at_most);

  /// Makes another version current, and waits until that is decided. See transport/current.h for what it means and for
  /// the errors. Not while a publish is under way on the same thread; otherwise any thread.
  Result<ActivationReport> activate(const ActivationRequest& request);
  /// Goes back to a version that is still kept (PublisherOptions::keep_versions), and holds it until release().
  Result<ActivationReport> rollback(VersionNumber version);
  /// Lets go of a hold: the newest version becomes current, and publishes advance again.
  Result<ActivationReport> release();

  PublisherStat stat() const;
  /// Where subscribers of this host find it, as `--at` takes it.
  std::string address() const;

 private:
  class Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
