// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A subscriber's control connection: to whom it is made, which the directory says or the addresses that were given,
/// and when it is made anew. The shelf tells of its errors. Owned by the subscriber's loop thread.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/protocol/messages.h"
#include "transport/subscribe/publisher_finder.h"
#include "transport/subscribe/version_shelf.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/sockets.h"

namespace freshet::detail {

class ControlLine {
 public:
  struct Options {
    std::string model;
    std::string directory;        ///< As people name it.
    std::vector<std::string> at;  ///< Addresses in order of preference; empty: ask the directory.
    std::optional<ClientCredentials> credentials;
    Neighbours neighbours = Neighbours::same_user;
  };
  /// What came of the last connection.
  struct Outcome {
    bool connected = false;  ///< The publisher answers.
    bool refused = false;    ///< And what it offers is of no use.
  };
  ControlLine(Options options, zmq::context_t context, VersionShelf& shelf, Rejects& rejects)
      : options_(std::move(options)), context_(std::move(context)), shelf_(shelf), rejects_(rejects) {}

  bool finds() const { return options_.at.empty(); }
  /// Where addresses were given: to the first of them.
  void begin(Time now);
  /// Where none was.
  void find_by(std::unique_ptr<Directory::Watch> watch, const std::string& host, std::optional<std::uint64_t> relays) {
    finder_.emplace(std::move(watch), options_.model, host, relays);
  }
  /// Somebody else may be there now.
  void hurry();
  bool knows_others() const { return finder_ ? finder_->knows_others() : options_.at.size() > 1; }
  /// Of whom it is connected to; null while it is not.
  const SocketAddress* address() const { return control_ ? &control_->address : nullptr; }

  void add_to(std::vector<zmq::pollitem_t>& items);
  /// What changed in the directory: goes to whom it names now.
  void take_news(Outcome outcome, Time now);
  /// Whether, since the last call, the directory led to somebody else, or a connection that had broken came back: what
  /// was said before may be lost.
  bool take_reached() { return std::exchange(reached_, false); }
  /// What is current by the directory, if that is news.
  std::optional<CurrentVersion> take_current() { return finder_ ? finder_->take_current() : std::nullopt; }
  void take_handshakes(Time now);
  /// The next message, or why it is passed over; nothing when there is none.
  std::optional<Result<protocol::Message>> receive(Time now);
  void say(protocol::Message message, Outcome outcome, Time now);
  /// ZeroMQ gives up after a refusal; we ask again.
  void tick(Time now);
  Time next_tick() const { return control_ ? reconnect_at_ : Time::max(); }

 private:
  void find(Outcome outcome, Time now);
  void turn_to_next(Time now);
  void connect(const std::string& address, Time now);
  const ClientCredentials* proof() const { return options_.credentials ? &*options_.credentials : nullptr; }

  const Options options_;
  zmq::context_t context_;
  VersionShelf& shelf_;
  Rejects& rejects_;
  std::optional<PublisherFinder> finder_;
  std::optional<ZmqSocket> control_;
  Time heard_at_{};                                ///< When something last came by it, or it was connected.
  std::string handshake_error_;                    ///< Told, and to be taken back when a handshake succeeds.
  Time reconnect_at_ = Time::max();                ///< After a refusal.
  std::size_t address_ = 0;                        ///< Of options_.at: the one that is used.
  Time address_heard_at_{};                        ///< When it last answered, or was turned to.
  bool has_shaken_ = false;                        ///< Hands, by the connection that it has.
  bool reached_ = false;                           ///< take_reached()
  std::optional<protocol::Message> unsent_hello_;  ///< Said before there was anybody to hear it.
};

}  // namespace freshet::detail
