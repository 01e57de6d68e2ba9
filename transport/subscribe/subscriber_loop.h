// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The subscriber's loop: the shell around SubscriberMachine. One thread polls a DEALER socket (control), the doors,
/// the directory's news and a wake-up, hands everything to the machine, and carries out its actions: it says what the
/// machine says, opens doors, and swaps versions in.

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/base/wake.h"
#include "transport/directory/directory.h"
#include "transport/protocol/subscriber/subscriber_machine.h"
#include "transport/shm/door_guest.h"
#include "transport/subscribe/control_line.h"
#include "transport/subscribe/fetch/channel_openers.h"
#include "transport/subscribe/fetch/version_fetcher.h"
#include "transport/subscribe/loop_report.h"
#include "transport/subscribe/relay.h"
#include "transport/subscribe/scrub.h"
#include "transport/subscribe/version_shelf.h"

namespace freshet {

/// shelf(): any thread, as the shelf says. The rest belongs to the loop's thread.
class SubscriberLoop {
 public:
  struct Options {
    SubscriberOptions subscriber;
    std::optional<ClientCredentials> credentials;
    std::uint64_t session_seed = 0;
    std::string label;
    std::string host;
    std::vector<std::string> at;                   ///< Addresses in order of preference; empty: ask the directory.
    std::optional<protocol::ChannelKind> channel;  ///< No other than this one.
    ChannelOpeners openers;
    std::string mapped_channel = "shm";  ///< What updates that come through a door name as their channel.
  };
  /// Everything that can fail was opened before: `directory` where the publisher is looked up, or `at`, its address.
  /// `relay`: null for none.
  SubscriberLoop(Options options, std::unique_ptr<Directory> directory, std::unique_ptr<detail::Relay> relay,
                 zmq::context_t context, Wake wake);
  ~SubscriberLoop();

  detail::VersionShelf& shelf() { return shelf_; }
  /// How the directory is; empty without one. Any thread.
  std::string directory_health() const { return directory_ == nullptr ? "" : directory_->health(); }
  detail::LoopReport& report() { return report_; }  ///< Any thread; what it is posted runs on the loop's.

  // subscriber_loop_current.cc
  Status stage(VersionNumber number);
  Result<VersionNumber> commit_staged();
  Status bring(VersionNumber number);
  void forget(VersionNumber number);
  void probe();
  void applied(VersionNumber number);
  void take_device(const std::shared_ptr<gpu::Device>& device);

 private:
  struct ReadAnnouncement {
    VersionNumber number = 0;
    Duration took{};
  };

  void run();
  void poll_all();
  std::chrono::milliseconds time_to_next_round() const;
  void take_control_messages();
  void take_announcement(const protocol::Announcement& announcement, Time read_at);
  void take_door(protocol::SessionId session);
  void take_directory_news();
  void tick();
  void carry_out();

  void open_watches();
  detail::ControlLine::Outcome outcome();
  void close_door(protocol::SessionId session, const Error& why);
  void install();
  void refuse(const protocol::action::Install& install, Error why);
  /// It is served, or kept beside the served one, from now on.
  void finish(const protocol::action::Install& install, std::unique_ptr<detail::ServedVersion> version);

  // subscriber_loop_fetch.cc
  void open_channel(const protocol::action::OpenChannel& action);
  void begin_fetch(protocol::action::Install install);
  void abandon(const protocol::action::Abandon& abandoned);
  void carry_on_fetch();
  void finish_fetch(Result<std::shared_ptr<const detail::FetchedMemory>> fetched, const detail::FetchTally& tally);
  /// To a relay's followers, and to the application.
  void tell_served(const Update& update);
  void take_relay_news();
  void scrub();
  Update update_of(const detail::ServedVersion& version) const;
  void reclaim();

  // subscriber_loop_current.cc
  void swap_staged(const protocol::action::SwapStaged& action);
  void tell_standing();

  Time now() const { return clock_.now(); }

  // Constant after construction.
  const Options options_;
  const std::string& model_;
  const Clock& clock_;
  const std::unique_ptr<Directory> directory_;  ///< Null when it is not needed.
  const Wake wake_;

  /// Before all that keeps books of the versions' memory, so that it ends after them.
  detail::VersionShelf shelf_;
  const std::unique_ptr<detail::Relay> relay_;  ///< Null unless versions are served again.
  detail::LoopReport report_;
  std::atomic<bool> stopping_{false};

  // The loop thread's.
  Rejects rejects_{"subscriber"};
  detail::ControlLine line_;
  std::unique_ptr<Directory::Watch> commits_;  ///< Where announcements come through the directory.
  std::map<protocol::SessionId, std::shared_ptr<shm::DoorGuest>> doors_;
  std::shared_ptr<gpu::Device> device_;               ///< Versions are mapped in its memory too; null: in none.
  std::optional<protocol::action::Install> waiting_;  ///< Its slabs may still be on their way through the door.
  detail::VersionFetcher fetcher_;
  detail::Scrub scrub_;
  std::optional<protocol::action::Install> fetching_;
  std::optional<protocol::action::Install> fetch_next_;  ///< Waits until one that was abandoned has ended.
  VersionNumber passed_on_ = 0;                          ///< The last version that the relay was given.
  VersionNumber seen_downstream_ = 0;                    ///< The highest number that the relay's subscribers have seen.
  bool same_host_ = true;  ///< The publisher's memory can be mapped from here, so its monotonic clock is ours too.
  Time staged_at_{};       ///< When the shelf's staged version was ready.
  protocol::Current passed_on_current_;
  std::string told_absent_;  ///< Why what is current is not served, as it was told.
  detail::ArchitectureCache architectures_;
  std::deque<ReadAnnouncement> read_announcements_;  ///< The last few.
  protocol::SubscriberMachine machine_;
  std::thread thread_;
};

}  // namespace freshet
