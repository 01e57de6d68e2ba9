// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The ranks of one job, met over TCP: the shell around group_machine.h. Rank 0 listens where the job was told to meet;
/// each rank besides listens on a port of its own, so that any rank can ask any other for bytes.
///
///     auto group = Group::open({.rank = 2, .ranks = 4, .meet = "tcp://10.0.0.7:7400", …}, handlers);
///     auto plan = (*group)->agree(inventory, decide);       // collective; `decide` is called at rank 0
///     auto bytes = (*group)->ask(3, question, at_most);     // from rank 3's memory or disk
///
/// Within a host no keys are needed, and only this user's processes come in; beyond it every rank has keys.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/group/group_machine.h"
#include "transport/security.h"

namespace freshet::group {

/// Questions that wait at one rank to be answered. One more is answered with unavailable.
inline constexpr std::size_t kQuestionsMax = 4096;

/// How many answers a rank may wait for at a time while all `ranks` may ask one of them.
constexpr std::size_t questions_at_a_time(std::size_t ranks) {
  return std::clamp<std::size_t>(kQuestionsMax / std::max<std::size_t>(ranks, 1), 1, 8);
}

/// Bytes that came from a peer, or were made here.
class Answer {
 public:
  Answer() = default;
  explicit Answer(zmq::message_t message) : message_(std::move(message)) {}
  explicit Answer(std::vector<std::byte> own) : own_(std::move(own)) {}
  Bytes bytes() const {
    return own_.empty() ? Bytes(static_cast<const std::byte*>(message_.data()), message_.size()) : Bytes(own_);
  }

 private:
  zmq::message_t message_;
  std::vector<std::byte> own_;
};

struct GroupOptions {
  Rank rank = 0;
  Rank ranks = 1;
  std::string meet;  ///< "tcp://HOST:PORT", rank 0's. May be empty for one rank.
  std::string host;  ///< Its failure domain; for messages and plans.
  Claims claims;     ///< What all ranks must have alike; "ranks" is added.
  SecurityOptions security;
  GroupMachine::Times times;
};

struct GroupHandlers {
  /// A peer's question; on a thread of the group's that does nothing else. At most kAnswerBytesMax.
  std::function<Result<std::vector<std::byte>>(Rank from, Bytes question)> on_ask;
  /// A note from a peer or from this rank itself; on the group's loop, so it must not block.
  std::function<void(Rank from, Bytes note)> on_note;
  /// The meeting is over: `lost` are lost, or `why` says what else. Once; on the group's loop.
  std::function<void(const std::vector<Rank>& lost, const Error& why)> on_end;
};

/// Any thread.
class Group {
 public:
  /// Returns when all ranks are here. Errors: invalid_argument (a bad address; ranks that were started unlike each
  /// other); timed_out naming who did not come; already_exists (the rank is there twice); unavailable; cancelled
  /// (an Interruption of the calling thread).
  static Result<std::unique_ptr<Group>> open(const GroupOptions& options, GroupHandlers handlers);
  ~Group();

  Rank rank() const;
  Rank ranks() const;
  const std::vector<Peer>& peers() const;

  /// At rank 0: makes of all ranks' parts, by rank, what all get. Runs on the thread that calls agree().
  using Decide = std::function<Result<std::vector<std::byte>>(std::vector<std::vector<std::byte>>)>;
  /// Collective: each rank calls it, in the same order. The decision, or the error in its place; unavailable when a
  /// rank is lost meanwhile. One thread at a time.
  Result<std::vector<std::byte>> agree(std::vector<std::byte> part, const Decide& decide, Duration at_most);

  /// Nothing when the meeting is over.
  void note(Rank to, std::vector<std::byte> data);

  /// A question under way.
  class Question {
   public:
    Question(Group& group, std::uint64_t number) : group_(&group), number_(number) {}
    Question(Question&& other) noexcept : group_(std::exchange(other.group_, nullptr)), number_(other.number_) {}
    Question& operator=(Question&&) = delete;
    ~Question();
    /// Its answer, or error; timed_out. Once.
    Result<Answer> wait(Duration at_most);

   private:
    Group* group_;
    std::uint64_t number_;
  };
  Question ask(Rank to, std::vector<std::byte> question);

  /// Collective, the last call: from here on ranks may go.
  Status leave(Duration at_most);
  /// Leaves: what waits, here and from now on, ends with cancelled, notes go nowhere, and when it returns no handler is
  /// called any more. Not from a handler.
  void stop();
  /// Why the meeting is over, if it is.
  std::optional<Error> over() const;

 private:
  struct Loop;
  explicit Group(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace freshet::group
