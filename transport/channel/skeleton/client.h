// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fetching side of every channel: its requests, what came of them, who is told of their ends, and silence. The
/// work of the library is behind Connection.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "transport/channel/channel.h"
#include "transport/channel/skeleton/reception.h"

namespace freshet::channel {

/// A client that waits says something this often, so that silence means something.
inline constexpr std::chrono::milliseconds kPingAfter = kPeerSilence / 4;

class Client;

/// What a library does for the fetching side of a connection. One thread at a time. Destroying it ends the connection
/// by force; nothing is written into any answer's memory afterwards.
class Connection {
 public:
  virtual ~Connection() = default;

  enum class Say : std::uint8_t { fetch, cancel, ping };
  /// Sends a message, or queues it until the connection stands; `data`, of a fetch, is copied. A failure is told by the
  /// next receive(). Called within receive(), too, by a sink.
  virtual void send(Say what, std::uint64_t request, Bytes data) = 0;
  /// Hands over what has come, until about `deadline`. True if it did anything. An error: the connection is dead, and
  /// everything that came before was handed over.
  virtual Result<bool> receive(Client& client, Time deadline) = 0;
  /// True when a descriptor will be readable as soon as receive() has something to do; false when it has already.
  virtual Result<bool> arm() = 0;
  /// The server has said something: it answers pings.
  virtual bool is_open() const { return true; }
  virtual Status register_memory(Bytes /*memory*/) { return {}; }
};

/// Sinks are called within progress() alone, perhaps from a library's callback: all that a sink may do then (fetch,
/// cancel) is bookkeeping and a send.
///
/// Invariant: a request is forgotten, and its end told, when no receive writes into its memory: each has completed, or
/// the connection is gone.
class Client final : public ChannelClient {
 public:
  struct Facts {
    ChannelKind kind = ChannelKind::zmq;
    std::string address;  ///< For errors.
    Reception::Rules rules;
    /// The server answers a cancel by `ended`; until then what comes under its number is late.
    bool answers_cancels = false;
    int idle_rounds = 0;           ///< Of nothing to do, while answers are on their way, before it is worth sleeping.
    std::vector<int> descriptors;  ///< The connection's; they are polled.
  };
  static Result<std::unique_ptr<ChannelClient>> open(std::unique_ptr<Connection> connection, Facts facts);

  ChannelKind kind() const override { return facts_.kind; }
  Status fetch(FetchRequest request, FetchSink& sink) override;
  void cancel(std::uint64_t request) override;
  int descriptor() const override { return epoll_.get(); }
  Result<bool> progress(std::chrono::microseconds at_most) override;
  std::uint64_t bytes_received() const override;
  Status register_memory(Bytes memory) override;

  // The connection's, within receive(). Numbers of requests that are not running are passed over: of one that was
  // cancelled, mostly.

  void heard();
  /// A chunk that is here: copied to where it belongs.
  void take_chunk(std::uint64_t request, const Chunk& chunk, Bytes data);
  /// Where a chunk that is still to be received goes; nothing when it is not wanted. Each is followed by arrived().
  std::optional<MutableBytes> place(std::uint64_t request, const Chunk& chunk, std::uint64_t length);
  /// It was received, or could not be.
  void arrived(std::uint64_t request, const Chunk& chunk, std::uint64_t length, const Status& received);
  void take_batch(std::uint64_t request, std::size_t answers, Bytes data);
  /// A batch could not be received.
  void lost(std::uint64_t request, Error why);
  void take_ended(std::uint64_t request, std::uint32_t code, Bytes text);
  /// The server said what no server of ours says.
  void break_off(Error why);
  bool is_broken() const { return broken_.has_value(); }
  bool is_running(std::uint64_t request) { return running(request) != nullptr; }

 private:
  struct Request {
    Request(const Reception::Rules& rules, FetchRequest request, FetchSink& sink)
        : reception(rules, std::move(request), sink) {}
    Reception reception;
    std::size_t receiving = 0;
    std::optional<Status> ending;  ///< What will be told when nothing is received for it any more.
  };

  Client(std::unique_ptr<Connection> connection, Facts facts)
      : facts_(std::move(facts)), connection_(std::move(connection)) {}
  Request* running(std::uint64_t request);
  /// After something was taken for it, or could not be.
  void settle(Request& request, const Status& taken);
  void give_up(Request& request, Status status);
  void say(Connection::Say what, std::uint64_t request = 0, Bytes data = {});
  bool tell_endings();
  void check_silence(Time now);
  void set_timer(Time now);
  void kick();
  void die(Error why);

  const Facts facts_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  std::unique_ptr<Connection> connection_;  ///< Null when it is dead.
  std::optional<Error> broken_;             ///< Why progress() is to end the connection.
  std::optional<Error> dead_;

  std::map<std::uint64_t, Request> requests_;
  std::set<std::uint64_t> draining_;  ///< Cancelled here; the server has not answered that yet.
  std::uint64_t bytes_received_ = 0;
  Time heard_{};
  Time said_{};
  Time looked_{};              ///< When progress() last had a look.
  std::optional<Time> asked_;  ///< When the server was asked for a sign of life that has not come.
};

}  // namespace freshet::channel
