// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The training loop's side. A Publisher copies tensors into its arena, digests them in the same pass, and finds the
/// changed ones; only this blocks the loop. In the background the publisher seals and announces the new version, and
/// serves it to subscribers.
///
///     auto publisher = Publisher::open({.model = "demo"});
///     …
///     auto receipt = (*publisher)->publish(tensors, {.step = step, .metrics = {{"loss", loss}}});

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/manifest.h"
#include "core/model/memory_kind.h"
#include "core/model/tensor.h"
#include "transport/channel_kind.h"
#include "transport/current.h"
#include "transport/security.h"

namespace freshet {

namespace gpu {
class Collective;
class Platform;
}  // namespace gpu

/// The endpoint that one or several publishers of a process share: its control socket and its loop thread. Any thread.
/// Publisher::open makes a hub unless the options give one.
class PublisherHub;
struct PublisherHubOptions {
  /// Address of the control socket, e.g. "tcp://127.0.0.1:7070". An address that other hosts reach ("tcp://*:7070")
  /// needs keys. Empty: an ipc address in the host directory's folder.
  std::string listen;
  /// Where subscribers look for the publisher: a folder of this host, or for many hosts a Redis server,
  /// "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]" or "redis+unix://[:PASSWORD@]/PATH[?db=N]". Empty:
  /// $FRESHET_DIRECTORY, otherwise the run folder of this user.
  std::string directory;
  /// Data channels for subscribers that cannot map this host's memory, or should not. Not set: if the control socket
  /// listens on TCP, the suitable kinds; otherwise none.
  ChannelChoice channels;
  /// Keys, and the allow-list.
  SecurityOptions security;
  /// The control socket's addresses that the directory gives to others: a client takes the first that it can use.
  /// Needed if others cannot use `listen` ("tcp://*:7070", a forwarded port). Empty: the address of `listen`. If
  /// `listen` means every interface, and the directory is for many hosts, this host's name takes the place of the
  /// interface.
  std::vector<std::string> advertise;
  std::shared_ptr<gpu::Collective> collective;  ///< Of the channel nccl. Null: NCCL's library.
};
Result<std::shared_ptr<PublisherHub>> open_publisher_hub(PublisherHubOptions options);
/// The control socket's address, as `--at` takes it on this host.
std::string address_of(const PublisherHub& hub);

struct PublisherStat;
/// Asks the hub at `address` (mostly another process's) for the state of its publishers and their subscribers: the
/// publisher of `model`, or all if `model` is empty. unavailable: no answer came in time. not_found: the hub does not
/// publish `model`. failed_precondition: keys are missing or refused.
Result<std::vector<PublisherStat>> ask_publisher_stat(const std::string& address, const std::string& model,
                                                      Duration at_most, const SecurityOptions& security = {},
                                                      const std::stop_token& stop = {});

/// How much of a GPU's memory a publisher may use for versions: bytes, or copies of the model. Neither: none.
struct DeviceMemory {
  std::uint64_t bytes = 0;
  double copies = 0;  ///< 0, or 1 to 64.
  bool is_wanted() const { return bytes != 0 || copies != 0; }
};

struct PublisherOptions {
  std::string model;                  ///< As check_model_name() allows.
  std::shared_ptr<PublisherHub> hub;  ///< Shared with other models. Null: open() makes one with the options below.
  PublisherHubOptions hub_options;
  /// The architecture; null makes a guessed chain from the first publish's tensors.
  std::shared_ptr<const Architecture> architecture;
  /// The version that training resumes from. The first publish compares its tensors with this version by digest. Equal
  /// tensors keep their owners, and the lineage goes on. Empty: starts a new lineage.
  std::shared_ptr<const Manifest> resume_from;
  RunId run;                       ///< All zero: a random one, or the resumed version's.
  VersionNumber number_floor = 0;  ///< New numbers are greater than this.

  std::uint64_t arena_limit_bytes = 0;  ///< 0: four times the model, once more for each of keep_versions
                                        ///< after the first, plus 64 MiB.
  /// Memory touched before a publish needs it, in copies of the model: the first publish touches one, and the others as
  /// far as versions change the model. With 3 and a tenth of the model named as changed, it touches 1.2 copies. Without
  /// names, the first publish touches two, the second the third. Three are enough if the subscribers keep up.
  double arena_copies = 3.0;
  /// For tensors in a GPU's memory: a version has a second copy there, which subscribers of this user on the same GPU
  /// read (Subscriber::take_device_memory). The publisher's stream then waits for a copy within the GPU alone. Two
  /// copies are enough if subscribers keep up; a version that finds no room has its copy in host memory alone
  /// (PublisherStat::device_memory_why). All of it lies on the GPU of the first such publish. Such memory cannot be
  /// sealed: another process of this user can write it.
  DeviceMemory device_memory;
  bool lock_memory = true;
  bool huge_pages = false;

  std::size_t every_queue_versions_max = 64;  ///< Kept for a slow `every` subscriber before a gap is recorded.
  /// The number of last versions that stay even if nobody holds them. A rollback can go back to them, and a subscriber
  /// that fetches can get a difference from them. Each needs memory for its changed tensors. When the publisher needs
  /// room, the oldest go. 0: two if other hosts may fetch (the hub listens on TCP), otherwise one, the newest.
  std::size_t keep_versions = 0;
  /// Subscribers that were opened `staged` are a group. A published version becomes current when all members have
  /// staged it, for all of them at once. If a member fails, or needs longer than `group_within`, the version does
  /// not become current: the publisher keeps it like any other, and nobody serves it (PublisherStat::activation_failure
  /// has the reason). The next publish is the next try.
  bool group_commit = false;
  Duration group_within = std::chrono::seconds(10);
  /// A member that is silent for this time has lapsed. The group does not wait for it, and the member notices its own
  /// silence (SubscriberOptions::when_lapsed). From half a second to an hour. 0: the default of two seconds.
  Duration membership{};
  /// For debugging a loop that names its changes: publish() copies and compares every tensor, also those that
  /// Changed::only does not name. If the bytes of such a tensor differ from the last version's, the publisher refuses
  /// the version: wait_committed() is failed_precondition, and the log names the tensors. The next publish takes all
  /// changes along. A version that begins with BoundTensors::begin() is not checked. Costs what Changed::find() costs.
  /// $FRESHET_CHECK_CHANGED=1 sets it for every publisher.
  bool check_changed = false;
  const Clock* clock = nullptr;  ///< Null: the system's.
  /// The GPUs that TensorPlace::device numbers. Null: those of NVIDIA's driver, which the first publish of tensors in a
  /// GPU's memory opens.
  std::shared_ptr<gpu::Platform> gpus;
};

/// Which tensors changed since the last publish.
class Changed {
 public:
  enum class Kind : std::uint8_t { all, find, only };
  static Changed all() { return Changed(Kind::all, {}); }
  /// The publisher finds the changed tensors: it compares the copy's digests with those of the last version.
  static Changed find() { return Changed(Kind::find, {}); }
  /// Indices into the given tensors. The publisher does not read the other tensors. The first publish takes all
  /// tensors.
  static Changed only(std::vector<std::uint32_t> tensors) { return Changed(Kind::only, std::move(tensors)); }

 private:
  friend class Publisher;
  Changed(Kind kind, std::vector<std::uint32_t> tensors) : kind_(kind), tensors_(std::move(tensors)) {}
  Kind kind_;
  std::vector<std::uint32_t> tensors_;
};

struct PublishOptions {
  std::uint64_t step = 0;
  Metrics metrics;
  Changed changed = Changed::find();
  Tags tags;
  /// The version's number. For programs that pass on versions which have numbers already. 0: the next number.
  /// failed_precondition unless it is above every number given or seen under this name.
  VersionNumber number = 0;
  /// True: publish() returns when the version is sealed and announced, instead of after the copy. For comparisons, and
  /// for loops that must not run ahead of the existing versions.
  bool sync = false;
  /// Where the tensors come from, for people who look: a file's path. PublisherStat::versions shows it. It is no part
  /// of the version.
  std::string source;
  /// Non-null: the tensors have this architecture from now on (a changed shape or dtype is otherwise an error).
  std::shared_ptr<const Architecture> new_architecture;
  /// Ends the wait of `sync`: publish() is then `cancelled`, and the version follows all the same.
  std::stop_token stop;
};

/// The effects of a publish at its return.
struct PublishReceipt {
  VersionNumber version = 0;
  std::uint64_t captured_tensors = 0;
  std::uint64_t captured_bytes = 0;
  Duration blocked{};  ///< Time in publish(), including the wait of `sync`.
};

/// The facts of a version after its seal and announcement.
struct CommitReport {
  VersionNumber version = 0;
  std::uint64_t tensors = 0;
  std::uint64_t changed_tensors = 0;
  std::uint64_t changed_bytes = 0;
  Duration capture_to_commit{};  ///< From the start of publish() until just before the announcement.
  Digest digest;                 ///< plain_xxh3_of() the encoded manifest: names this version and no other.
};

struct SubscriberStat {
  std::string label;  ///< The subscriber's own name for itself.
  std::int32_t pid = 0;
  bool every = false;
  bool silent = false;  ///< No heartbeat for a second: stopped, or stuck.
  VersionNumber serving = 0;
  std::vector<VersionNumber> held;
  std::uint64_t queued_versions = 0;
  std::uint64_t gaps = 0;    ///< Versions that the publisher dropped for this subscriber.
  std::string channel;       ///< The channel of its last request for a version.
  std::string channel_why;   ///< The reason for this channel, and earlier failures, in the subscriber's own words.
  std::string serves;        ///< Its own address, if it is a relay.
  bool member = false;       ///< Of the group.
  std::uint64_t epoch = 0;   ///< The epoch of the served version.
  VersionNumber staged = 0;  ///< Ready to be swapped in; 0: none.
  std::string failed;        ///< The reason why it could not stage a version; empty if it could.
  /// Of a relay: the subscribers behind it that do not serve the relay's version. One more if the subscriber's program
  /// has not put the served version to use yet (SubscriberOptions::applies).
  std::uint32_t behind = 0;
  std::uint64_t failures = 0;  ///< Versions that it could not stage, by its own word.
  /// For how long the publisher has had a newer version than `serving`; 0: it has none. Not set: it did not say.
  std::optional<Duration> staleness;
};

/// What a publisher tells of a version that it published.
struct VersionStat {
  VersionNumber version = 0;
  std::uint64_t step = 0;
  Metrics metrics;  ///< The loss first, if the version has it; at most kVersionMetricsMax.
  std::int64_t published_unix_ns = 0;
  std::string source;  ///< PublishOptions::source, cut to kVersionSourceBytesMax; a relay knows none.
};
inline constexpr std::size_t kVersionStatsMax = 8;
inline constexpr std::size_t kVersionMetricsMax = 8;
inline constexpr std::size_t kVersionSourceBytesMax = 4096;

struct PublisherStat {
  std::string model;
  VersionNumber newest = 0;
  std::uint64_t model_bytes = 0;
  std::uint64_t versions_published = 0;
  std::uint64_t versions_skipped = 0;  ///< Calls of publish() and BoundTensors::capture() that got out_of_space.
  std::uint64_t bytes_published = 0;   ///< Of changed tensors.
  std::uint64_t arena_bytes = 0;
  std::uint64_t arena_free_bytes = 0;
  std::uint64_t locked_bytes = 0;
  std::uint64_t device_memory_bytes = 0;       ///< Of slabs in a GPU's memory.
  std::uint64_t device_memory_free_bytes = 0;  ///< Of those.
  std::string device_memory_why;  ///< Why the last version went to host memory alone; empty where it did not.
  std::string directory;          ///< The directory's state: "reachable", or since when it is away, and why.
  CurrentVersion current;
  /// Whether the publisher keeps the current version. A held version ends with the publisher's process. A restarted
  /// publisher keeps the hold, but cannot give the version to new subscribers: they wait for a release.
  bool current_kept = true;
  VersionNumber candidate = 0;     ///< The version that the group is staging; 0: none.
  std::string activation_failure;  ///< The failure of the last activation or candidate; empty if it succeeded.
  Duration mixed{};                ///< ActivationReport::mixed of the last activation.
  /// The last kVersionStatsMax versions, the newest last; kept or not.
  std::vector<VersionStat> versions;
  std::vector<SubscriberStat> subscribers;
};

class Publisher;

struct BindOptions {
  /// What the tensors lie in, if their `place` does not say it: of `device` and `managed`, GPU 0 and its default
  /// stream. For a kind that is none, each publish() and begin() answers `unsupported`.
  MemoryKind memory = MemoryKind::host;
};

/// A model's tensors at a fixed place in memory. The program gives them to a publisher once (Publisher::bind). One
/// publish() makes a version of them. A loop that updates layer by layer can copy each layer as soon as its update is
/// done, while the other layers still compute (DeepFreeze, CCGrid'20, III):
///
///     bound.begin();                       // The step's first update may come.
///     bound.capture({{7}}); …              // Layer 7 is updated: copied now, and free to be written again.
///     bound.end({.step = step});           // Copies the remaining tensors, and makes the version.
///
/// A version has the bytes that each tensor had when it was captured, or at end(). The caller makes sure that all of
/// them belong to one step. Only for the publishing thread. The publisher must outlive the object.
class BoundTensors {
 public:
  /// Publisher::publish() of these tensors. It compares names and shapes with the architecture once, not at each step.
  Result<PublishReceipt> publish(PublishOptions options);

  /// Errors of publish(); failed_precondition if a version was begun and not ended. After out_of_space no version was
  /// begun, and the next one has all changes.
  Status begin();
  /// Copies these tensors, by index, for the version that end() makes. A second capture of a tensor copies it again.
  /// invalid_argument for an index out of range; failed_precondition without begin(); out_of_space as publish(): this
  /// version is skipped, and the next one has its changes too.
  Status capture(std::span<const std::uint32_t> tensors);
  /// As publish(). The receipt also counts the earlier captures and their time. A captured tensor counts as changed if
  /// its bytes differ from those of the version before.
  Result<PublishReceipt> end(PublishOptions options);
  /// Gives the begun version up, if there is one; the next version has its changes too.
  void abandon();

  /// From now on this stream writes the tensors on that GPU (TensorPlace::stream). A publish or capture takes the
  /// values that the stream has queued at the call.
  void set_stream(std::int32_t device, std::uintptr_t stream);

  std::span<const TensorView> tensors() const { return tensors_; }

 private:
  friend class Publisher;
  BoundTensors(Publisher& publisher, std::vector<TensorView> tensors, BindOptions options);
  Status check_readable() const;

  Publisher* publisher_;
  std::vector<TensorView> tensors_;
  BindOptions options_;
  std::shared_ptr<const Architecture> checked_;  ///< The architecture that the tensors were checked against.
  Duration blocked_{};                           ///< Time in begin() and capture() for the open version.
};

/// Only one thread at a time may call publish() and close(). Any thread may call the other functions. A call with a
/// stop token ends its wait with `cancelled` when somebody asks for the stop.
///
/// In a forked child the publisher is dead. The child has neither the name, nor the sockets, nor the versions' memory.
/// Each call is failed_precondition (stat() is empty), and the destructor does nothing. So name, port and versions end
/// with the process that opened the publisher, even if its forked data loaders live on. The child may open its own
/// publisher, of another model.
class Publisher {
 public:
  /// already_exists: a living publisher has the name; the message names its process.
  static Result<std::unique_ptr<Publisher>> open(PublisherOptions options);
  /// As close(), with ten minutes for unfinished versions; a log line names the versions that were dropped.
  ~Publisher();

  /// Waits up to `at_most` for the versions that were published and are not sealed. Drops the versions that are left:
  /// wait_committed() reports them as `cancelled`, and no subscriber hears of them. Then stops serving, which takes
  /// milliseconds, also while the directory does not answer. Subscribers keep their mapped versions. Afterwards
  /// publish() and activate() are failed_precondition. `cancelled`: versions were dropped; the message names them. A
  /// second call does nothing.
  Status close(Duration at_most);

  /// Copies `tensors` (all tensors of the model, always in the same order) and returns; the version follows. Blocks for
  /// the copy. At most two copied versions wait for their seal. So if the loop is faster than the seals, the n-th
  /// publish also waits until the version of publish n - 2 is sealed.
  ///
  /// Tensors in a GPU's memory (TensorPlace) are copied behind the caller, and no publish() of them waits. The version
  /// has the values that each tensor's stream had queued at the call. Before publish() returns, this stream waits for
  /// the copy, on the device: each later write on it, and each free in its order, comes after the copy. Tensors of both
  /// kinds may come in one publish. An error of the device after the return refuses the version: wait_committed() has
  /// it, and so has the log. The next publish takes the changes along.
  /// Errors:
  ///   invalid_argument: no tensors, a tensor's size contradicts its spec, duplicate names, an index out of range.
  ///   failed_precondition: names, dtypes or shapes differ from the architecture, and no new one was given.
  ///   out_of_space: readers hold too much of the arena; or the two versions before this one are not sealed. publish()
  ///     does not wait for them if tensors are in a GPU's memory; otherwise it waits up to half a minute. This version
  ///     is skipped, the loop goes on, and the next publish captures its changes too.
  ///   timed_out: the same wait, of a publish with another architecture; nothing has changed.
  ///   Of tensors in a GPU's memory also: unavailable, there is no driver; invalid_argument, an address is not of that
  ///     GPU; failed_precondition, the GPU is lost to this process. Nothing is lost: as after out_of_space.
  Result<PublishReceipt> publish(std::span<const TensorView> tensors, PublishOptions options);

  /// Binds tensors that are published again and again from the same memory. The first publish checks them.
  BoundTensors bind(std::vector<TensorView> tensors, BindOptions options = {});

  /// Waits until a version is sealed, and returns its report. timed_out at the deadline. not_found: no publish with
  /// this number was started, or the version is older than the last 1024.
  Result<CommitReport> wait_committed(VersionNumber version, Duration at_most, const std::stop_token& stop = {});

  /// Makes another version current, and waits for the decision. transport/current.h has the meaning and the errors. Any
  /// thread, but no log hook (core/base/log.h). After `cancelled`, the
  /// activation may still happen.
  Result<ActivationReport> activate(const ActivationRequest& request, const std::stop_token& stop = {});
  /// Goes back to a version that the publisher still keeps (PublisherOptions::keep_versions), and holds it until
  /// release().
  Result<ActivationReport> rollback(VersionNumber version, const std::stop_token& stop = {});
  /// Ends a hold: the newest version becomes current, and each publish becomes current again.
  Result<ActivationReport> release(const std::stop_token& stop = {});

  PublisherStat stat() const;
  /// The address for subscribers of this host, as `--at` takes it.
  std::string address() const;
  /// The last number that was given under this name before this publisher was opened; 0: it is the name's first one.
  VersionNumber number_before() const;

 private:
  friend class BoundTensors;
  class Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  /// No capture is open, the publisher is not closed, and this is the process that opened it.
  Status check_closed() const;
  /// `checked`, where it is given, is the architecture that the tensors were checked against, and is set after a check.
  Result<PublishReceipt> publish_now(std::span<const TensorView> tensors, const PublishOptions& options,
                                     std::shared_ptr<const Architecture>* checked);
  std::unique_ptr<Impl> impl_;
};

}  // namespace freshet
