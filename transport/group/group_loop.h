// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The inside of a Group: its sockets, the loop that owns them, and what answers peers' questions.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "transport/group/answerer.h"
#include "transport/group/group.h"
#include "transport/group/ways.h"
#include "transport/loop_tasks.h"
#include "transport/zmq/authenticator.h"
#include "transport/zmq/listener.h"
#include "transport/zmq/rejects.h"

namespace freshet::group {

struct Group::Loop {
  struct Parts {
    zmq::context_t context;
    std::unique_ptr<Authenticator> authenticator;
    std::optional<ZmqSocket> socket;
    std::optional<KeyPair> keys;
    std::optional<PublicKey> hub_key;
    Wake wake;
    std::string meet;  ///< In numbers.
  };
  struct Visitor {
    std::string identity;
    int descriptor = -1;
  };
  struct Asked {
    Rank to = 0;
    std::optional<Result<Answer>> answer;
    CondVar came;
  };
  Loop(const GroupOptions& options, GroupHandlers given, Parts parts);
  ~Loop();
  void start();

  // The loop's thread.
  void run();
  void carry_out(GroupMachine::Outcome outcome);
  void send_to(Rank to, const Message& message);
  void send_to_visitor(const std::string& identity, const Message& message);
  bool is_to_end();
  void forget_ended();
  void take_visitors();
  void take_from_visitor(std::vector<zmq::message_t>& parts, Time now);
  void take_answers(Rank from, Ways::Way& way);
  void take_events(Rank to);
  void fail_questions(std::optional<Rank> to, const Error& why);
  std::vector<zmq::pollitem_t> poll_items();

  // Any thread.
  void stop();

  const Rank rank;
  const Rank ranks;
  const GroupHandlers handlers;
  const Wake wake;
  LoopTasks tasks{wake};

  // The loop's. Sockets end before the authenticator, and that before the context.
  zmq::context_t context;
  const std::unique_ptr<Authenticator> authenticator;
  std::optional<ZmqSocket> socket;
  std::optional<Listener> listener;
  Ways ways;
  std::map<Rank, Visitor> visitors;  ///< Rank 0: who said hello.
  std::vector<int> ended_descriptors;
  GroupMachine machine;
  std::optional<Time> ends_at;
  Rejects rejects{"ranks"};

  mutable Mutex mutex;
  CondVar changed;
  bool met FRESHET_GUARDED_BY(mutex) = false;
  bool done FRESHET_GUARDED_BY(mutex) = false;  ///< leave() succeeded.
  std::optional<Error> over FRESHET_GUARDED_BY(mutex);
  std::vector<Peer> peers FRESHET_GUARDED_BY(mutex);
  std::optional<std::pair<std::uint64_t, std::vector<std::vector<std::byte>>>> to_decide FRESHET_GUARDED_BY(mutex);
  std::map<std::uint64_t, Message> decided FRESHET_GUARDED_BY(mutex);
  std::uint64_t agreements FRESHET_GUARDED_BY(mutex) = 0;
  std::uint64_t questions FRESHET_GUARDED_BY(mutex) = 0;
  std::map<std::uint64_t, std::shared_ptr<Asked>> asked FRESHET_GUARDED_BY(mutex);
  bool stopping FRESHET_GUARDED_BY(mutex) = false;
  std::thread thread;
  Answerer answerer;
};

}  // namespace freshet::group
