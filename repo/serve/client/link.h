// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One connection to a repository's server, with a thread that carries messages for everybody who asks. It does not
/// connect again: when it is dead, every conversation ends with the reason, and its owner opens another.

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/wake.h"
#include "repo/serve/client/client_machine.h"
#include "repo/serve/wire/questions.h"
#include "transport/security/credentials.h"
#include "transport/zmq/handshakes.h"
#include "transport/zmq/sockets.h"

namespace freshet::rpc {

using Response = Received<wire::Reply>;

class Link;

/// One request and what is answered to it. One thread at a time. Destroying it gives up what was not answered.
class Conversation {
 public:
  Conversation(std::shared_ptr<Link> link, std::uint64_t request) : link_(std::move(link)), request_(request) {}
  Conversation(Conversation&&) = default;
  ~Conversation();

  std::uint64_t request() const { return request_; }
  /// The next answer, or its error: the server's, or why none will come. timed_out when none came by then.
  Result<Response> next(Time deadline);
  void send_chunk(std::uint64_t offset, Bytes chunk);
  void abandon();

 private:
  std::shared_ptr<Link> link_;
  std::uint64_t request_ = 0;
};

/// Any thread.
class Link : public std::enable_shared_from_this<Link> {
 public:
  struct Options {
    std::string address;
    std::optional<ClientCredentials> credentials;
    Neighbours believed = Neighbours::same_user;  ///< Of this host, without credentials.
    ClientTimes times;
  };
  /// Connects and says hello. Errors as connect_repository().
  static Result<std::shared_ptr<Link>> open(const Options& options, Time deadline);
  ~Link();

  /// The link's error when it is dead.
  template <typename Question>
  Result<Conversation> begin(const Question& question) FRESHET_EXCLUDES(mutex_) {
    const std::uint64_t number = ++numbers_;
    return converse(number, rpc::request(number, question));
  }
  bool is_dead() const FRESHET_EXCLUDES(mutex_);
  const std::string& address() const { return address_; }
  /// From the Welcome of the server.
  std::uint64_t session() const { return session_; }
  const std::string& host() const { return host_; }
  Standing standing() const { return standing_; }
  const ServedOwner& owner() const { return owner_; }  ///< Of a standby.
  /// It was found to offer no data channels.
  std::atomic<bool> has_no_channels{false};

 private:
  friend class Conversation;
  struct Outgoing {
    std::uint64_t request = 0;  ///< That it begins; 0 for none.
    Encoded head;
    std::optional<zmq::message_t> data;
  };
  struct Inbox {
    std::deque<Response> responses;
    std::optional<Error> failed;
    CondVar came;
  };
  struct Parts {
    zmq::context_t context;
    ZmqSocket socket;
    Wake wake;
  };
  Link(const Options& options, HandshakeParties parties, Parts parts);

  static Result<std::shared_ptr<Link>> connect(const Options& options);
  Status hello(Time deadline);
  Result<Conversation> converse(std::uint64_t number, Encoded message) FRESHET_EXCLUDES(mutex_);
  void push(Outgoing outgoing) FRESHET_EXCLUDES(mutex_);
  Result<std::optional<Response>> take_from(std::uint64_t request) FRESHET_REQUIRES(mutex_);
  /// The next answer; nothing when none came by then.
  Result<std::optional<Response>> wait_for(std::uint64_t request, Time until) FRESHET_EXCLUDES(mutex_);
  void give_up(std::uint64_t request) FRESHET_EXCLUDES(mutex_);

  // On the loop's thread.
  void run();
  std::chrono::milliseconds time_to_sleep(Time now) const;
  void send_posted() FRESHET_EXCLUDES(mutex_);
  void take_events();
  void take_messages();
  void take(const zmq::message_t& message);
  void deliver(Response response) FRESHET_EXCLUDES(mutex_);
  void tick();
  void fail_one(std::uint64_t request, const Error& error) FRESHET_EXCLUDES(mutex_);
  void die(Error why) FRESHET_EXCLUDES(mutex_);

  const std::string address_;
  const HandshakeParties parties_;
  const Duration silence_;
  const Wake wake_;
  std::atomic<std::uint64_t> numbers_{0};
  std::uint64_t session_ = 0;  ///< Constant once it is open.
  std::string host_;
  Standing standing_ = Standing::stays;
  ServedOwner owner_;

  // The loop thread's.
  zmq::context_t context_;
  ZmqSocket socket_;
  ClientMachine machine_;
  std::optional<Error> broken_;

  mutable Mutex mutex_;
  std::vector<Outgoing> outgoing_ FRESHET_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> given_up_ FRESHET_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Inbox>> inboxes_ FRESHET_GUARDED_BY(mutex_);
  std::optional<Error> dead_ FRESHET_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::atomic<bool> broke_off_{false};  ///< The handshake ended without a reason.
  std::thread thread_;
};

}  // namespace freshet::rpc
