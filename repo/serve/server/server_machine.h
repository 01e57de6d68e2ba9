// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The server's side of the protocol as a value: who is connected, which of their questions are being worked on, and
/// which uploads are under way. It is told what came and what was worked out, each with a time, and returns what to do.
/// It opens no socket, reads no clock and starts no thread; the only memory it touches is that of uploads.
///
/// A client may leave while a worker works on its call. The machine counts the worker's job, with its question and its
/// upload, until the job ends. A client that leaves and comes back therefore gets no second share.
///
/// No key can use up the common limits: clients, calls and long questions are counted for each key too, however many
/// connections it has. Without keys each connection counts for itself. A refusal names the limit that was hit.
///
/// An upload's room is what came of it and what its client may send now, not what it announced. So that uploads end,
/// one keeps the right to the rest of its room: the first of those that keep up. Others get credit only beside that
/// rest. A key's uploads, but for its first, have at most half of the room. An upload that pauses lets others take what
/// it needs later. Where none can go on for want of room, the one that began last fails, so that the first one ends.
///
/// A put goes like this: the question is worked on (which tensors are wanted?), on_planned() reserves room and invites
/// the client to send them, on_chunk() collects them, and when the last is there the version is stored. The client may
/// send no more than the credit that it was given. One that leaves, or falls silent, in the middle leaves nothing.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/serve/wire/questions.h"

namespace freshet::rpc {

/// A connection, as the socket names it; another one for the same client after it connected again.
using Peer = std::string;
/// A question that is worked on.
using Ticket = std::uint64_t;
using Question = std::shared_ptr<const Received<wire::Request>>;

/// The tensors of a put, one after another, in the memory of the server.
class Upload {
 public:
  struct Part {
    std::uint32_t tensor = 0;
    std::uint64_t bytes = 0;
  };
  /// `plan` is whatever the shell needs to store it.
  Upload(std::vector<Part> parts, std::shared_ptr<const void> plan);

  const std::vector<Part>& parts() const { return parts_; }
  const std::shared_ptr<const void>& plan() const { return plan_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t received() const { return received_; }
  bool is_complete() const { return received_ == bytes_; }
  /// Of a part; not_found for a tensor that is none.
  Result<Bytes> bytes_of(std::uint32_t tensor) const;

  /// False when there is no memory for it.
  bool reserve();
  /// False when that is not what follows. REQUIRES: reserve() returned true.
  bool take(std::uint64_t offset, Bytes chunk);

 private:
  const std::vector<Part> parts_;
  const std::shared_ptr<const void> plan_;
  std::map<std::uint32_t, std::size_t> index_;  ///< Of a tensor's part.
  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0;
  std::uint64_t received_ = 0;
  std::unique_ptr<std::byte[]> memory_;
};

struct ServerLimits {
  std::size_t clients_max = 1024;
  std::size_t clients_per_key_max = 512;
  std::size_t calls_per_client_max = 64;
  std::size_t calls_per_key_max = 1024;  ///< Also of jobs, with those of its clients that have left.
  std::size_t calls_max = 8192;          ///< Of all clients, as of a key.
  /// Of all questions above kTextBytesMax that wait for a worker, or are being worked on. More are out_of_space.
  /// Shorter ones are limited by their number.
  std::uint64_t question_bytes_max = 2 * kMessageBytesMax;
  std::uint64_t question_bytes_per_key_max = kMessageBytesMax;
  /// Of all uploads together; those for which there is no room wait their turn, to begin or to go on.
  std::uint64_t upload_bytes_max = std::uint64_t{8} << 30;
  std::uint64_t window_bytes = std::uint64_t{16} << 20;  ///< Of an upload that may come before a credit.
  Duration silence = std::chrono::seconds(10);           ///< Of a client, which pings each second.
  Duration stall = std::chrono::seconds(60);             ///< Of an upload whose client goes on pinging.
  /// So many bytes a second an upload must bring at least, all in all, after a first `stall`: or it loses its room. The
  /// second number counts while others wait for room.
  std::uint64_t upload_rate_min = std::uint64_t{64} << 10;
  std::uint64_t upload_rate_min_crowded = std::uint64_t{1} << 20;
  /// After so long, one that does not come at the second rate does not keep room from others by what it announced.
  Duration upload_grace = std::chrono::seconds(2);
};

namespace action {
struct Welcome {
  Peer peer;
  std::uint64_t request = 0;
  std::uint64_t session = 0;
  std::string owner;  ///< A key, or the peer without one.
};
struct Pong {
  Peer peer;
  std::vector<std::uint64_t> running;
};
/// Work on it, a job: on_answered() or on_planned() tells what came out.
struct Run {
  Ticket ticket = 0;
  std::uint64_t session = 0;
  std::string owner;  ///< Whose it is: a key, or a connection without one.
  Question question;
};
struct Reply {
  Peer peer;
  Encoded message;
};
struct Refuse {
  Peer peer;
  std::uint64_t request = 0;  ///< 0: all that the client says; its connection is to end.
  Error error;
};
struct Invite {
  Peer peer;
  std::uint64_t request = 0;
  std::shared_ptr<const Upload> upload;
};
struct Credit {
  Peer peer;
  std::uint64_t request = 0;
  std::uint64_t bytes = 0;
};
/// All bytes are there: store the version, a job; then on_answered(), or on_planned() when more is wanted.
struct Store {
  Ticket ticket = 0;
  std::uint64_t request = 0;
  std::string owner;
  std::shared_ptr<const Upload> upload;
};
/// Nobody waits for this job: take it away if it was not begun, then on_dropped(). Else its end is told as any job's.
struct Drop {
  Ticket ticket = 0;
};
/// Nothing of it is under way any more.
struct EndSession {
  Peer peer;
  std::uint64_t session = 0;
};
}  // namespace action

using ServerAction = std::variant<action::Welcome, action::Pong, action::Run, action::Reply, action::Refuse,
                                  action::Invite, action::Credit, action::Store, action::Drop, action::EndSession>;

/// What becomes of calls that come after ServerMachine::close_door().
enum class LateCalls {
  begin,
  wait,  ///< They are not begun, and their clients wait until the server has ended.
  lose,  ///< They are dropped, and the next pong tells their clients.
};

/// One thread at a time.
class ServerMachine {
 public:
  /// Sessions are numbered from `seed` in a way that nobody can guess who does not know it.
  ServerMachine(ServerLimits limits, std::uint64_t seed) : limits_(limits), seed_(seed) {}

  /// `key`: with which the client proved itself; empty without keys.
  void on_hello(const Peer& peer, std::uint64_t request, std::uint32_t protocol, Time now, std::string_view key = {});
  void on_ping(const Peer& peer, Time now);
  void on_bye(const Peer& peer);
  void on_call(const Peer& peer, std::uint64_t request, Question question, Time now);
  /// A question that its client has no right to.
  void on_refused(const Peer& peer, std::uint64_t request, Error error, Time now);
  void on_chunk(const Peer& peer, std::uint64_t request, std::uint64_t offset, Bytes chunk, Time now);
  void on_abandon(const Peer& peer, std::uint64_t request, Time now);
  /// It said what no client of ours says, or its connection is gone.
  void on_broken(const Peer& peer, const std::string& why);

  void on_answered(Ticket ticket, Encoded reply, Time now);
  void on_progress(Ticket ticket, Encoded progress);
  /// An upload is needed, or another one than the first, of which everything came.
  void on_planned(Ticket ticket, std::shared_ptr<Upload> upload, Time now);
  void on_dropped(Ticket ticket, Time now);

  /// Nobody new is let in from now on.
  void close_door(LateCalls late);
  /// About each second.
  void on_tick(Time now);
  std::vector<ServerAction> take_actions() { return std::exchange(actions_, {}); }

  std::size_t sessions() const { return sessions_.size(); }
  std::size_t calls() const { return calls_.size(); }
  std::size_t jobs() const { return jobs_.size(); }
  std::size_t owners() const { return shares_.size(); }
  std::uint64_t question_bytes() const { return question_bytes_; }
  std::uint64_t upload_bytes() const { return upload_bytes_; }

 private:
  /// The sums over the clients of a key.
  struct Share {
    std::size_t clients = 0;
    std::size_t calls = 0;
    std::size_t jobs = 0;
    std::uint64_t question_bytes = 0;
    std::uint64_t upload_bytes = 0;
  };
  struct Session {
    std::uint64_t session = 0;
    std::string owner;
    Time heard{};
    std::map<std::uint64_t, Ticket> calls;  ///< By request.
    std::vector<std::uint64_t> unheard;     ///< Those that were not begun.
  };
  struct Call {
    Peer peer;
    std::string owner;
    std::uint64_t request = 0;
    std::shared_ptr<Upload> upload;  ///< Null but while its bytes come.
    /// Counted in question_bytes_: a planned put's manifest stays until the put ends.
    std::uint64_t question_bytes = 0;
    std::uint64_t turn = 0;  ///< Its line in uploads_; 0: it was not invited.
    std::uint64_t room = 0;  ///< Counted in upload_bytes_: what came, and what may come.
    bool invited = false;    ///< The client may send its tensors, and has not sent all of them.
    std::uint64_t uncredited = 0;
    std::optional<Time> owed;  ///< Since when it has no credit because there is no room.
    Time moved{};
    Time begun{};  ///< When its client was invited.
  };
  /// A job that a worker has and has not finished. At most one for a ticket.
  struct Job {
    std::string owner;
    std::uint64_t question_bytes = 0;  ///< Counted in question_bytes_.
    std::uint64_t upload_bytes = 0;    ///< Counted in upload_bytes_.
  };
  using Sessions = std::unordered_map<Peer, Session>;

  void count_question(const std::string& owner, std::uint64_t bytes);
  void uncount_question(const std::string& owner, std::uint64_t bytes);
  void forget_if_unused(const std::string& owner);
  std::optional<Error> why_not_welcome(const std::string& owner) const;
  /// Why there is no room for one more call of that session, with so many bytes of a long question.
  std::optional<Error> why_no_room(const Session& session, std::uint64_t question_bytes) const;
  /// Null after it was told that it must say hello first.
  Session* session_of(const Peer& peer, std::uint64_t request, Time now);
  void end_session(Sessions::iterator at);
  Call* call_of(const Peer& peer, std::uint64_t request, Ticket* ticket);
  /// Forgets the call, and gives back the room of its upload.
  void end_call(Ticket ticket);
  void fail_call(Ticket ticket, Error error);
  void invite_waiting(Time now);
  void credit_owed(Time now);
  /// Every upload that was begun waits for room, and only the end of one of them would give some.
  bool none_goes_on() const;
  void invite(Ticket ticket, Call& call, Time now);
  void give_credit(Call& call, Time now);
  bool keeps_up(const Call& call, Time now) const;
  /// Whether an upload may have so much more room. `turn`: its line in uploads_, or 0.
  bool may_have_room(std::uint64_t turn, const std::string& owner, std::uint64_t bytes, Time now) const;
  void count_upload(const std::string& owner, std::uint64_t bytes);
  void uncount_upload(const std::string& owner, std::uint64_t bytes);
  void release_room(Call& call);
  void begin_job(Ticket ticket, const Job& job);
  void end_job(Ticket ticket);
  void store(Ticket ticket, Call& call);
  bool is_stalled(const Call& call, Time now) const;
  bool is_too_slow(const Call& call, bool crowded, Time now) const;
  bool is_crowded() const;
  void refuse(const Peer& peer, std::uint64_t request, Error error);

  const ServerLimits limits_;
  const std::uint64_t seed_;
  std::uint64_t sessions_made_ = 0;
  Ticket tickets_made_ = 0;
  Sessions sessions_;
  std::unordered_map<Ticket, Call> calls_;
  std::unordered_map<Ticket, Job> jobs_;           ///< May name calls that have ended.
  std::unordered_map<std::string, Share> shares_;  ///< By owner.
  std::deque<Ticket> waiting_;               ///< Uploads without room, in their order; may name calls that have ended.
  std::map<std::uint64_t, Ticket> uploads_;  ///< Calls that were invited, in their order, until all came.
  std::uint64_t turns_made_ = 0;
  std::uint64_t question_bytes_ = 0;
  std::uint64_t upload_bytes_ = 0;
  bool closing_ = false;
  LateCalls late_ = LateCalls::begin;
  std::vector<ServerAction> actions_;
};

}  // namespace freshet::rpc
