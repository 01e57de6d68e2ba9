// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The fetching side of a connection.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "transport/channel/channel.h"
#include "transport/channel/zmq/reception.h"
#include "transport/channel/zmq/zmq_channel.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet::channel::zmq_channel {

/// Sinks are called from progress() alone.
class Client final : public ChannelClient {
 public:
  struct Parts {
    zmq::context_t context;
    ZmqSocket socket;
    FileDescriptor epoll;
    FileDescriptor timer;
    HandshakeParties parties;
  };
  Client(Parts parts, std::uint64_t window);

  ChannelKind kind() const override { return ChannelKind::zmq; }
  Status fetch(FetchRequest request, FetchSink& sink) override;
  void cancel(std::uint64_t request) override;
  int descriptor() const override { return epoll_.get(); }
  Result<bool> progress(std::chrono::microseconds at_most) override;
  std::uint64_t bytes_received() const override;

 private:
  struct Request {
    Request(FetchRequest request, FetchSink& sink) : reception(std::move(request), sink) {}
    Reception reception;
    std::optional<Status> ending;
  };

  bool take_messages(Time deadline);
  void take(const zmq::message_t& message);
  void take_answer(const Frame& frame, Bytes data);
  void take_ended(const Frame& frame, Bytes data);
  void take_events();
  bool tell_endings();
  void give_credit();

  Request* running(std::uint64_t request);
  void give_up(Request& request, Status status);
  void tell_server(const Frame& frame, Bytes data = {});
  void check_silence(Time now);
  void set_timer(Time now);
  bool has_more();
  void kick();
  void die(Error why);

  const std::uint64_t window_;
  const HandshakeParties parties_;
  FileDescriptor epoll_;
  FileDescriptor timer_;
  zmq::context_t context_;
  std::optional<ZmqSocket> socket_;  ///< Nothing when the connection is dead.
  std::optional<Error> broken_;      ///< Why progress() is to end the connection.
  std::optional<Error> gone_;        ///< Why it ended by itself: what came before is still taken.
  std::optional<Error> dead_;

  std::map<std::uint64_t, Request> requests_;
  std::set<std::uint64_t> draining_;  ///< Given up here; the server has not answered that yet.
  std::uint64_t credit_ = 0;          ///< Taken, and not told yet.
  std::uint64_t bytes_received_ = 0;
  Time heard_{};
  Time said_{};
  std::optional<Time> asked_;  ///< When the server was asked for a sign of life that has not come.
};

}  // namespace freshet::channel::zmq_channel
