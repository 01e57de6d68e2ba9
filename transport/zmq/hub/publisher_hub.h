// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's loop: the shell around PublisherMachine. One thread polls a ROUTER socket (control), the door
/// (descriptors of slabs) and a queue of tasks from other threads, hands everything to the machine of the model that it
/// is meant for, and carries out the machine's actions. Announcements go out over the control socket too, to those who
/// said Hello: there is no socket that strangers could subscribe to.
///
/// A hub serves one model or several. Messages that are meant for nobody here are counted and dropped.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/fork_guard.h"
#include "transport/loop_tasks.h"
#include "transport/protocol/publisher/waiting_hellos.h"
#include "transport/zmq/hub/activation_waiters.h"
#include "transport/zmq/hub/data_channels.h"
#include "transport/zmq/hub/hub_folder.h"
#include "transport/zmq/hub/served_model.h"

namespace freshet {

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
  bool reaches_other_hosts() const { return control_->address().is_tcp(); }
  DataChannels& channels() { return channels_; }

  /// Where versions can be had is the hub's to say: door, host, channels and seed. `owner` must stay until remove() has
  /// returned. already_exists when the hub has a model of that name.
  Status add(protocol::PublisherOptions options, HubModel& owner);
  /// Closes the doors of its subscribers, who keep what they have mapped. Returns when the loop has let go of it.
  void remove(const std::string& model);
  /// The same, and returns at once: the model's owner still has to remove() it.
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
              std::shared_ptr<source::ComingVersion> coming);
  void not_coming(const std::string& model, VersionNumber number);
  /// Gives up queued versions until `bytes` were freed or nothing is left to give up; returns before that is done.
  void shed_queues(const std::string& model, std::uint64_t bytes);
  /// Waits for nobody. Never null.
  std::shared_ptr<const ModelStanding> standing(const std::string& model) const { return standings_.of(model); }

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
  /// What open() made, all that can fail.
  struct Parts {
    std::unique_ptr<Directory> directory;
    std::unique_ptr<ControlSocket> control;
    std::vector<std::string> advertised;
    std::unique_ptr<shm::DoorHost> door;
    std::string door_path;
    Wake wake;
  };
  explicit PublisherHub(Parts parts);

  /// Soon, on the loop's thread, and its machine's actions are carried out then. Nothing for a model that was taken out
  /// meanwhile: its owner asked for it, or its claim was lost.
  void post_to(const std::string& model, std::function<void(ServedModel&)> task);
  void post_and_wait(std::function<void()> task);

  // On the loop's thread.
  void run();
  std::chrono::milliseconds time_to_next_tick() const;
  void hear(const protocol::Peer& peer, protocol::Message message, std::string_view key);
  /// Null: it is for none of these. `session`: that it names, or 0.
  ServedModel* model_of(const protocol::Message& message, protocol::SessionId* session);
  void answer_stat(const protocol::Peer& peer, const protocol::StatRequest& request);
  void take_door_events();
  Result<bool> tend_models();
  void tick();
  void tell_standings();
  void shed(ServedModel& model, std::uint64_t bytes);
  void note_fetched();
  void carry_out(ServedModel& model);
  void announce(const protocol::action::Announce& news);
  void send(const protocol::Peer& peer, const protocol::Message& message);
  void remove_now(const std::string& name);

  // Constant after construction.
  const ForkMark mark_;
  const std::unique_ptr<Directory> directory_;
  const std::string door_path_;
  const Wake wake_;
  const std::string address_;
  const std::vector<std::string> advertised_;  ///< One at least.

  // Before the channels: a channel's thread may post until it is joined, which is after the loop's end.
  LoopTasks tasks_{wake_};
  Standings standings_;
  ActivationWaiters waiters_;
  protocol::WaitingHellos hellos_;  ///< The loop's thread.

  // The loop thread's.
  const std::unique_ptr<ControlSocket> control_;
  const std::unique_ptr<shm::DoorHost> door_;
  std::map<std::string, ServedModel> models_;
  DataChannels channels_;
  HubFolder folder_;

  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// One JSON object, as StatReply carries it.
std::string to_json(const std::vector<PublisherStat>& models);
/// The same of a publisher's answer: untrusted. `address` is named in the error.
/// corrupt: a member is missing or of another kind.
Result<std::vector<PublisherStat>> stats_from_json(const std::string& text, const std::string& address);

}  // namespace freshet
