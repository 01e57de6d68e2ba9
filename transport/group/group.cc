// SPDX-License-Identifier: Apache-2.0
#include "transport/group/group.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/layout/layout.h"
#include "transport/group/group_loop.h"
#include "transport/group/meeting_place.h"
#include "transport/security/credentials.h"

namespace freshet::group {
namespace {

constexpr Duration kLastLifePatience = std::chrono::seconds(5);

/// A rank that asks another one has three sockets for that: its own, and the two ends of its monitor.
int sockets_of(Rank ranks) { return kZmqSocketsMax + 3 * static_cast<int>(std::min<Rank>(ranks, kRanksMax)); }

/// The port may still be the job's life's before, which is on its way out.
Result<ZmqSocket> bind_when_free(zmq::context_t& context, const std::string& at,
                                 const std::optional<ServerCredentials>& proof, Duration patience) {
  const Time deadline = system_clock().now() + std::min(patience, kLastLifePatience);
  for (;;) {
    FRESHET_ASSIGN(SocketAddress address, SocketAddress::parse(at, true, proof ? Reach::any_host : Reach::this_host));
    Result<ZmqSocket> bound =
        bind_data(context, std::move(address), proof ? &*proof : nullptr, {.message_bytes_max = kMessageBytesMax});
    if (bound || bound.error().code() != Code::already_exists || system_clock().now() >= deadline) return bound;
    FRESHET_TRY(Interruption::check());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace

Group::Group(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Group::~Group() = default;

Rank Group::rank() const { return loop_->rank; }
Rank Group::ranks() const { return loop_->ranks; }
const std::vector<Peer>& Group::peers() const FRESHET_NO_THREAD_SAFETY_ANALYSIS { return loop_->peers; }

Result<std::unique_ptr<Group>> Group::open(const GroupOptions& options, GroupHandlers handlers) {
  if (options.ranks == 0 || options.rank >= options.ranks) {
    return refuse(format("rank {} of {} ranks cannot be: ranks count from 0", options.rank, options.ranks));
  }
  FRESHET_ASSIGN(zmq::context_t context, make_zmq_context(sockets_of(options.ranks)));
  std::unique_ptr<Authenticator> authenticator;
  std::optional<ZmqSocket> socket;
  std::optional<KeyPair> keys;
  std::optional<PublicKey> hub_key;
  std::string meet;
  if (options.ranks > 1) {
    FRESHET_ASSIGN(meet, meeting_address(options.meet));
    SecurityOptions security = options.security;
    const std::string server_key = std::exchange(security.server_key, "");
    FRESHET_ASSIGN(const std::optional<ServerCredentials> proof, server_credentials(security));
    if (proof) {
      keys = proof->keys;
      if (options.rank != 0) {
        if (server_key.empty()) return refuse("with keys each rank needs rank 0's public key (--server-key)");
        FRESHET_ASSIGN(hub_key, read_public_key(server_key));
      }
      FRESHET_ASSIGN(authenticator, Authenticator::open(context, proof->allow_file));
    }
    std::string at = meet;
    if (options.rank != 0) {
      FRESHET_ASSIGN(at, own_address_towards(meet));
    }
    FRESHET_ASSIGN(ZmqSocket bound, bind_when_free(context, at, proof, options.times.patience));
    socket.emplace(std::move(bound));
    if (options.rank != 0 && socket->address.text() == meet) {
      // The system chose the port on which rank 0 will listen. It chooses another while this one is held.
      FRESHET_ASSIGN(ZmqSocket other, bind_when_free(context, at, proof, options.times.patience));
      socket.reset();
      socket.emplace(std::move(other));
    }
  }
  FRESHET_ASSIGN(Wake wake, Wake::open());
  GroupOptions with_ranks = options;
  with_ranks.claims.insert(with_ranks.claims.begin(), {"ranks", format("{}", options.ranks)});
  auto loop = std::make_unique<Loop>(with_ranks, std::move(handlers),
                                     Loop::Parts{.context = std::move(context),
                                                 .authenticator = std::move(authenticator),
                                                 .socket = std::move(socket),
                                                 .keys = std::move(keys),
                                                 .hub_key = std::move(hub_key),
                                                 .wake = std::move(wake),
                                                 .meet = std::move(meet)});
  try {
    loop->start();
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start the threads of a meeting: {}", error.what()));
  }
  auto group = std::unique_ptr<Group>(new Group(std::move(loop)));
  Loop& running = *group->loop_;
  const Time deadline = deadline_in(options.times.patience) + std::chrono::seconds(2);
  for (;;) {
    const Time look = Interruption::next_look(deadline);
    {
      const MutexLock lock(running.mutex);
      while (!running.met && !running.over && running.changed.wait_until(running.mutex, look)) continue;
      if (running.met) return group;
      if (running.over) return fail(Error(*running.over).with_context(format("meet at {}", options.meet)));
    }
    if (Interruption::is_wanted())
      return fail(Code::cancelled, format("the meeting at {} was interrupted", options.meet));
    if (look == deadline) return fail(Code::timed_out, format("the ranks did not meet at {}", options.meet));
  }
}

Result<std::vector<std::byte>> Group::agree(std::vector<std::byte> part, const Decide& decide, Duration at_most) {
  Loop& loop = *loop_;
  const Time deadline = deadline_in(at_most);
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = ++loop.agreements;
  }
  loop.tasks.post([&loop, number, data = std::move(part)]() mutable {
    loop.carry_out(loop.machine.contribute(number, std::move(data), system_clock().now()));
  });
  for (;;) {
    std::optional<std::vector<std::vector<std::byte>>> parts;
    const Time look = Interruption::next_look(deadline);
    {
      const MutexLock lock(loop.mutex);
      do {
        if (const auto at = loop.decided.find(number); at != loop.decided.end()) {
          const Message message = std::move(at->second);
          loop.decided.erase(at);
          if (message.code != 0) return fail(error_in(message));
          return message.data;
        }
        if (loop.over) return fail(*loop.over);
        if (loop.to_decide && loop.to_decide->first == number) {
          parts = std::move(loop.to_decide->second);
          loop.to_decide.reset();
          break;
        }
      } while (loop.changed.wait_until(loop.mutex, look) || system_clock().now() < look);
    }
    if (!parts) {
      if (Interruption::is_wanted()) return fail(Code::cancelled, "the wait for the other ranks was interrupted");
      if (look == deadline) return fail(Code::timed_out, "the ranks did not agree in time");
      continue;
    }
    Result<std::vector<std::byte>> decision = decide(*std::move(parts));
    loop.tasks.post([&loop, number, decision = std::move(decision)]() mutable {
      loop.carry_out(loop.machine.decide(number, std::move(decision), system_clock().now()));
    });
  }
}

void Group::note(Rank to, std::vector<std::byte> data) {
  Loop& loop = *loop_;
  loop.tasks.post(
      [&loop, to, data = std::move(data)]() mutable { loop.carry_out(loop.machine.note(to, std::move(data))); });
}

Group::Question Group::ask(Rank to, std::vector<std::byte> question) {
  Loop& loop = *loop_;
  auto asked = std::make_shared<Loop::Asked>();
  asked->to = to;
  if (to == loop.rank) {
    Result<std::vector<std::byte>> own = loop.handlers.on_ask(to, question);
    asked->answer = own ? Result<Answer>(Answer(*std::move(own))) : Result<Answer>(fail(std::move(own).error()));
  }
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = ++loop.questions;
    if (loop.over && !asked->answer) asked->answer = fail(*loop.over);
    loop.asked.emplace(number, asked);
    if (asked->answer) return Question(*this, number);
  }
  loop.tasks.post([&loop, to, number, asked, data = std::move(question)]() mutable {
    Ways::Way* const way = loop.ways.to(to, loop.machine.peers());
    Message message{.kind = Kind::ask, .from = loop.rank, .number = number, .data = std::move(data)};
    if (way != nullptr && send(way->socket.socket, "", encode(message))) return;
    const MutexLock lock(loop.mutex);
    if (!asked->answer) asked->answer = fail(Code::unavailable, format("rank {} cannot be reached", to));
    asked->came.notify_all();
  });
  return Question(*this, number);
}

Group::Question::~Question() {
  if (group_ == nullptr) return;
  const MutexLock lock(group_->loop_->mutex);
  group_->loop_->asked.erase(number_);
}

Result<Answer> Group::Question::wait(Duration at_most) {
  Loop& loop = *group_->loop_;
  const Time deadline = deadline_in(at_most);
  for (;;) {
    const Time look = Interruption::next_look(deadline);
    {
      const MutexLock lock(loop.mutex);
      const std::shared_ptr<Loop::Asked> asked = loop.asked.at(number_);
      while (!asked->answer && asked->came.wait_until(loop.mutex, look)) continue;
      if (asked->answer) return std::move(*asked->answer);
      if (look == deadline) return fail(Code::timed_out, format("rank {} did not answer in time", asked->to));
    }
    FRESHET_TRY(Interruption::check());
  }
}

Status Group::leave(Duration at_most) {
  Loop& loop = *loop_;
  const auto nothing = [](std::vector<std::vector<std::byte>>) { return std::vector<std::byte>(1); };
  std::uint64_t number = 0;
  {
    const MutexLock lock(loop.mutex);
    number = loop.agreements + 1;
  }
  loop.tasks.post([&loop, number] { loop.machine.leave_after(number); });
  FRESHET_TRY(agree(std::vector<std::byte>(1), nothing, at_most));
  return {};
}

void Group::stop() { loop_->stop(); }

std::optional<Error> Group::over() const {
  const MutexLock lock(loop_->mutex);
  return loop_->over;
}

}  // namespace freshet::group
