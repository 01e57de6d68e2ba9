// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's loop: the shell around PublisherMachine. One thread polls a ROUTER socket (control), the door
/// (descriptors of slabs) and a queue of tasks from other threads, hands everything to the machine of the model that it
/// is meant for, and carries out the machine's actions. Announcements go out over the control socket too, to those who
/// said Hello: there is no socket that strangers could subscribe to.
///
/// A hub serves one model or several. Messages that are malformed, or meant for nobody here, are counted and dropped;
/// so are those of a client that was taken off the allow-list.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/directory/directory.h"
#include "transport/protocol/publisher/publisher_machine.h"
#include "transport/publisher.h"
#include "transport/shm/door_host.h"
#include "transport/source/fetch_desk.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/hub/peer_budgets.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/send_budget.h"
#include "transport/zmq/sockets.h"

namespace freshet {

/// The owner of one model of a hub: whoever has an arena. Called on the hub's thread, but for what is marked; must not
/// block.
class HubModel {
 public:
  virtual ~HubModel() = default;
  /// These segments may be written again. Any thread.
  virtual void on_free(std::span<const SegmentIndex> segments) = 0;
  /// The memory of these segments, of a version that was committed. It stays until remove() has returned.
  virtual std::vector<Bytes> bytes_of(std::span<const SegmentIndex> segments) const = 0;
  /// The next version must be numbered above this.
  virtual void on_number_floor(VersionNumber floor) = 0;
  /// What is current of the model is to be swapped in the directory; PublisherHub::current_swapped() takes the answer.
  /// One that follows another publisher is never asked.
  virtual void swap_current(const protocol::Current& /*expected*/, const protocol::Current& /*desired*/) {}
  /// What the directory was last seen to have, if somebody else can change it there; all zero otherwise. Cheap.
  virtual protocol::Current recorded() const { return {}; }
  /// Directory::Claim::tend(), for one that has a claim. Reads and writes small files of this host.
  virtual Result<bool> tend() { return false; }
  virtual PublisherStat stat(const std::vector<protocol::PublisherMachine::SessionStat>& sessions) const = 0;
  /// How many bytes should be free and are not, so that the next version finds room: asked after each commit.
  virtual std::uint64_t room_wanted() const { return 0; }
};

/// How a model stood when its hub's thread last looked, which is when something last happened, or 50 ms later where
/// there are many subscribers.
struct ModelStanding {
  std::vector<protocol::PublisherMachine::SessionStat> sessions;
  CurrentVersion current;
  bool current_kept = true;
  VersionNumber candidate = 0;
  std::string activation_failure;
  Duration mixed{};

  void put_into(PublisherStat& stat) const;
};

/// Any thread, but for what is marked. Whoever publishes waits for the hub's thread in add() and remove(), and with a
/// deadline in activate(), and nowhere else: that thread serves strangers.
class PublisherHub {
 public:
  static Result<std::shared_ptr<PublisherHub>> open(PublisherHubOptions options);
  ~PublisherHub();

  /// For neighbours on this host.
  const std::string& address() const { return address_; }
  /// failed_precondition in a child of the process that opened it: its threads are not there.
  Status check_here() const { return check_not_inherited(mark_, "the publisher's hub"); }
  /// For those who ask the directory.
  const std::vector<std::string>& advertised() const { return advertised_; }
  Directory& directory() const { return *directory_; }
  /// Whether subscribers may come that cannot map this host's memory.
  bool reaches_other_hosts() const { return control_.address.is_tcp(); }

  struct ModelOptions {
    std::string model;
    RunId run;
    std::uint64_t incarnation = 0;
    VersionNumber first_number = 0;  ///< Of this incarnation; 0: not known.
    std::size_t every_queue_versions_max = 64;
    protocol::Activation::Options activation;
    std::size_t keep_versions = 1;
    VersionNumber believed_number_max = protocol::kNumbersBelieved;  ///< As PublisherMachine::Options.
  };
  /// `model` must stay until remove() has returned. already_exists when the hub has one of that name.
  Status add(ModelOptions options, HubModel& model);
  /// Closes the doors of its subscribers, who keep what they have mapped. Returns when the loop has let go of it.
  void remove(const std::string& model);
  /// The same, and returns at once: `model`'s owner still has to remove() it.
  void let_go(const std::string& model);

  /// Makes a version the newest and announces it; `announced` is called on the hub's thread afterwards. `slabs` are all
  /// that exist, their descriptors open until remove().
  void commit(const std::string& model, protocol::CommittedVersion version, std::vector<shm::SlabReference> slabs,
              std::function<void()> announced);
  /// A relay: it serves that older version again, and so can others. `fresh`: its segments that the hub has not heard
  /// of; they are free again at once where it has the version anyway.
  void restore(const std::string& model, protocol::CommittedVersion version, std::vector<shm::SlabReference> slabs,
               std::vector<SegmentIndex> fresh);
  /// A relay: that version is being fetched, and can be fetched from here as it comes (PublisherMachine::on_coming).
  void coming(const std::string& model, protocol::CommittedVersion version,
              std::shared_ptr<serve::ComingVersion> coming);
  void not_coming(const std::string& model, VersionNumber number);
  /// More of it is there.
  void look_again();
  /// Gives up queued versions until `bytes` were freed or nothing is left to give up; returns before that is done.
  void shed_queues(const std::string& model, std::uint64_t bytes);
  /// Waits for nobody. Never null.
  std::shared_ptr<const ModelStanding> standing(const std::string& model) const FRESHET_EXCLUDES(mutex_);

  /// Memory that versions will lie in, for the channels that want to know it once; and before it is unmapped, after
  /// remove(). Any thread; may take as long as pinning it does.
  void register_memory(Bytes memory);
  void forget_memory(const std::vector<Bytes>& memory);
  std::vector<channel::ChannelStat> channel_stats() const;

  /// As if it had come over the control socket, made from what is current there and then; waits for the answer. Not
  /// from the hub's thread.
  Result<protocol::Activated> activate(
      const std::string& model,
      std::function<Result<protocol::Activate>(const protocol::Current& current)> make_request, Duration at_most,
      const std::stop_token& stop = {});
  /// What the directory has now, or why that is not known.
  void current_swapped(const std::string& model, Result<protocol::Current> record);
  /// For a model that follows another publisher: what is current there.
  void current_seen(const std::string& model, const protocol::Current& pair);

 private:
  struct Model {
    std::string name;
    HubModel* owner = nullptr;
    std::unique_ptr<protocol::PublisherMachine> machine;
    std::shared_ptr<shm::SlabList> slabs;
    std::shared_ptr<serve::ServedSegments> segments;
    std::shared_ptr<serve::ComingVersion> coming;  ///< Null when nothing is.
    bool has_changed = true;                       ///< Since its standing was told.
    Time told_at{};
  };

  /// What open() made, all that can fail.
  struct Parts {
    std::unique_ptr<Directory> directory;
    std::string host;
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    ZmqSocket control;
    std::vector<std::string> advertised;
    std::unique_ptr<shm::DoorHost> door;
    std::string door_path;
    Wake wake;
    Neighbours neighbours = Neighbours::same_user;
  };
  explicit PublisherHub(Parts parts);

  void post(std::function<void()> task) FRESHET_EXCLUDES(mutex_);
  void post_and_wait(std::function<void()> task);

  // On the loop's thread.
  void run();
  std::chrono::milliseconds time_to_next_tick() const;
  void run_tasks() FRESHET_EXCLUDES(mutex_);
  void take_control_messages();
  void tend();
  void announce(const protocol::action::Announce& news);
  void route(const protocol::Peer& peer, protocol::Message message, std::string_view key);
  /// False: it was answered that it may not.
  bool may_activate(const protocol::Peer& peer, const protocol::Activate& request, std::string_view key);
  void activate(const protocol::Peer& peer, const protocol::Activate& request);
  void answer_waiter(const protocol::Peer& peer, const protocol::Message& message);
  void remove_now(const std::string& name);
  static ModelStanding standing_of(const Model& model);
  void tell_standing(Model& model) FRESHET_EXCLUDES(mutex_);
  void tell_standings();
  void answer_stat(const protocol::Peer& peer, const protocol::StatRequest& request);
  Model* model_of(const protocol::Message& message, protocol::SessionId* session);
  void take_door_events();
  void tick();
  /// Puts back what somebody removed of the hub's in the directory's folder, and says so.
  void tend_folder();
  Result<bool> tend_files();
  void tell_of_folder(const Result<bool>& tended);
  void carry_out(Model& model);
  void open_lease(Model& model, const protocol::action::OpenLease& lease);
  void close_lease(const protocol::action::CloseLease& lease);
  void cut_off(protocol::SessionId session);
  void note_fetched();
  void on_lease_closed(protocol::LeaseId lease);  ///< Any thread.
  /// Null once the model was taken out: its owner asked for it, or its claim was lost. What was posted before finds
  /// that.
  Model* find(const std::string& name);
  std::vector<protocol::ChannelOffer> offers() const;
  void send_to(const protocol::Peer& peer, const protocol::Message& message);
  void send_encoded(const protocol::Peer& peer, const std::shared_ptr<const std::vector<std::byte>>& encoded);
  /// Ends its connection, where that is known and not this user's own socket file.
  void put_out(const protocol::Peer& peer, std::string_view why);

  // Constant after construction.
  const ForkMark mark_;
  const std::unique_ptr<Directory> directory_;
  const std::string host_;
  const std::string door_path_;
  const Wake wake_;
  const std::string address_;
  const std::vector<std::string> advertised_;  ///< One at least.

  // Before the channels: a channel's thread may post until it is joined, which is after the loop's end.
  mutable Mutex mutex_;
  std::vector<std::function<void()>> tasks_ FRESHET_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const ModelStanding>> standings_ FRESHET_GUARDED_BY(mutex_);

  // The loop thread's. Sockets end before the authenticator does, and that before the context.
  zmq::context_t context_;
  const std::unique_ptr<Authenticator> authenticator_;  ///< Null without keys.
  ZmqSocket control_;
  std::unique_ptr<Listener> listener_;  ///< Of a control socket that is tcp.
  SendBudget sends_;
  PeerBudgets budgets_{{}};
  std::unique_ptr<shm::DoorHost> door_;
  std::map<std::string, Model> models_;
  struct Waiter;
  std::map<protocol::Peer, std::shared_ptr<Waiter>> waiters_;  ///< Of this process, for an Activated.
  serve::FetchDesk desk_;
  std::vector<std::unique_ptr<channel::ChannelServer>> channels_;  ///< They answer from the desk, so they go first.
  Rejects rejects_{"control socket"};
  Time tend_at_{};
  std::string told_of_folder_;  ///< The error that was told last.

  std::atomic<std::uint64_t> waiters_made_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// A peer of the control socket has at most so many bytes (ZeroMQ); one with more is somebody in this process who
/// waits.
inline constexpr std::size_t kPeerBytesMax = 255;

/// One JSON object, as StatReply carries it.
std::string to_json(const std::vector<PublisherStat>& models);

}  // namespace freshet
