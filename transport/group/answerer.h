// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Answers what peers of a group ask, on a thread of its own, one question after another; the loop puts questions in
/// and sends what comes out. Questions without an answer, and answers that nobody has read yet, are limited.

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/group/group.h"
#include "transport/zmq/rejects.h"
#include "transport/zmq/send_budget.h"
#include "transport/zmq/sockets.h"

namespace freshet::group {

class Answerer {
 public:
  /// `wake`, the loop's, is told when there is something to send.
  Answerer(Rank rank, decltype(GroupHandlers::on_ask) on_ask, const Wake& wake);
  ~Answerer();
  void start();
  /// No other question is begun.
  void stop() FRESHET_EXCLUDES(mutex_);
  void join();

  // The loop's thread.
  void put(std::string identity, Message question) FRESHET_EXCLUDES(mutex_);
  void send_answers(ZmqSocket& socket, Rejects& rejects) FRESHET_EXCLUDES(mutex_);

 private:
  struct ToAnswer {
    std::string identity;
    Message message;
  };
  struct Answered {
    std::string identity;
    std::uint64_t number = 0;
    Result<std::vector<std::byte>> answer;
  };
  void run() FRESHET_EXCLUDES(mutex_);

  const Rank rank_;
  const decltype(GroupHandlers::on_ask) on_ask_;
  const Wake& wake_;
  SendBudget sends_;  ///< What waits for those who asked.
  Mutex mutex_;
  CondVar question_came_;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::deque<ToAnswer> to_answer_ FRESHET_GUARDED_BY(mutex_);
  std::uint64_t to_answer_bytes_ FRESHET_GUARDED_BY(mutex_) = 0;  ///< Of the questions in it.
  std::vector<Answered> answered_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace freshet::group
