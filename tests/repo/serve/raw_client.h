// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <zmq.hpp>

#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// A client's socket without a client.
class RawClient {
 public:
  /// `unread_max`: how many answers ZeroMQ takes for it that it has not heard.
  explicit RawClient(const std::string& address, int unread_max = 1000) : socket_(context_, zmq::socket_type::dealer) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, unread_max);
    socket_.set(zmq::sockopt::rcvtimeo, 5000);
    socket_.connect(address);
  }
  void say(Bytes bytes, bool more = false) {
    socket_.send(zmq::buffer(bytes.data(), bytes.size()), more ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
  void say(const Encoded& message, bool more = false) {
    say(std::as_bytes(std::span(message.data(), message.size())), more);
  }
  /// The next answer; nothing when none comes.
  std::optional<Received<wire::Reply>> hear() {
    zmq::message_t message;
    if (!socket_.recv(message)) return std::nullopt;
    auto reply = Received<wire::Reply>::open(Bytes(static_cast<const std::byte*>(message.data()), message.size()));
    if (!reply) return std::nullopt;
    return std::move(*reply);
  }
  void hello() {
    say(rpc::hello(1));
    const auto welcome = hear();
    ASSERT_TRUE(welcome && step_in<Welcome>(*welcome));
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

}  // namespace freshet::rpc
