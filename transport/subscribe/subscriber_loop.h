#pragma once

/// The subscriber's loop: the shell around SubscriberMachine. One thread polls a DEALER socket (control), a SUB socket
/// (announcements), the doors, the directory's news and a wake-up, hands everything to the machine, and carries
/// out its actions: it says what the machine says, opens doors, and swaps versions in.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "transport/directory/directory.h"
#include "transport/protocol/subscriber_machine.h"
#include "transport/shm/door_guest.h"
#include "transport/subscribe/publisher_finder.h"
#include "transport/subscribe/version_shelf.h"
#include "transport/wake.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/sockets.h"

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
  };
  /// Everything that can fail was opened before: `directory` where the publisher is looked up, or `at`, its address.
  SubscriberLoop(Options options, std::unique_ptr<Directory> directory, zmq::context_t context, Wake wake);
  ~SubscriberLoop();

  detail::VersionShelf& shelf() { return shelf_; }
  /// How the directory is; empty without one. Any thread.
  std::string directory_health() const { return directory_ == nullptr ? "" : directory_->health(); }

 private:
  static constexpr Time kNever = Time::max();

  /// A version whose slabs may still be on their way through the door.
  struct WaitingInstall {
    protocol::Grant grant;
    Time granted_at;
    Time give_up_at;
  };
  struct ReadAnnouncement {
    VersionNumber number = 0;
    Duration took{};
  };

  void run();
  void poll_all();
  std::chrono::milliseconds time_to_next_round() const;
  void take_control_messages();
  void take_announcements();
  void take_announcement(Bytes encoded, Time read_at);
  void take_door(protocol::SessionId session);
  void take_directory_news();
  void tick();
  void carry_out();

  void say(protocol::Message message);
  void open_watches();
  void find_publisher();
  const ClientCredentials* proof() const { return options_.credentials ? &*options_.credentials : nullptr; }
  Result<SocketAddress> parse_address(const std::string& address) const;
  void connect_control(const std::string& address);
  /// The announcements' address as a Welcome names it, made one that can be reached from here.
  Result<SocketAddress> announcements_address(const std::string& named) const;
  Status connect_announcements(const std::string& named);
  void take_handshakes();
  void note_handshake(ZmqSocket& socket, Time& reconnect_at);
  void reconnect_refused();
  void open_door(const protocol::action::OpenDoor& action);
  void close_door(protocol::SessionId session, const Error& why);
  void try_install();
  void install();
  void refuse_install(const Error& why);
  Update update_of(const detail::ServedVersion& version, const protocol::Grant& grant, Time granted_at) const;
  void reclaim();
  Time now() const { return clock_.now(); }

  // Constant after construction.
  const Options options_;
  const std::string& model_;
  const Clock& clock_;
  const std::unique_ptr<Directory> directory_;  ///< Null when it is not needed.
  const Wake wake_;

  detail::VersionShelf shelf_;
  std::atomic<bool> stopping_{false};

  // The loop thread's.
  zmq::context_t context_;
  std::optional<ZmqSocket> control_;
  std::optional<ZmqSocket> announcements_;
  std::string announcements_named_;     ///< In the Welcome that they come from.
  std::string handshake_error_;         ///< Told, and to be taken back when a handshake succeeds.
  Time reconnect_control_at_ = kNever;  ///< ZeroMQ gives up after a refusal; we ask again.
  Time reconnect_announcements_at_ = kNever;
  std::optional<PublisherFinder> finder_;      ///< Where no address was given.
  std::unique_ptr<Directory::Watch> commits_;  ///< Where announcements come through the directory.
  std::map<protocol::SessionId, std::shared_ptr<shm::DoorGuest>> doors_;
  std::optional<WaitingInstall> waiting_;
  detail::ArchitectureCache architectures_;
  std::deque<ReadAnnouncement> read_announcements_;  ///< The last few.
  std::optional<protocol::Message> unsent_hello_;    ///< Said before there was anybody to hear it.
  Rejects rejects_{"subscriber"};
  protocol::SubscriberMachine machine_;
  std::thread thread_;
};

}  // namespace freshet
