// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/server_machine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kWindow = 1000;
constexpr std::uint64_t kRoom = 5000;

Encoded done(std::uint64_t request) { return answer_to<AbortPut>(request); }

/// A question of a little more than so many bytes.
Question question(std::size_t bytes = 0) {
  const Encoded message = request(1, call_of<AskLatest>(std::string(bytes, 'm')));
  auto received = Received<wire::Request>::open(std::as_bytes(std::span(message.data(), message.size())));
  return std::make_shared<const Received<wire::Request>>(std::move(received).value());
}

/// A server without sockets and a repository without versions: puts of random sizes by clients that leave, fall silent,
/// abandon and lie, workers that go on with what nobody waits for, and what must hold all the while.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), machine_(limits(), seed) {}

  void step() {
    now_ += std::chrono::milliseconds(random_() % 50);
    switch (random_() % 15) {
      case 0: return hello();
      case 1: return call();
      case 2: return abandon();
      case 3: return leave();
      case 4: return machine_.on_tick(now_);
      case 5: return plan_or_answer();
      case 6: return ping();
      case 7: return lie();
      case 8: return begin_work();
      case 9: return finish_in_vain();
      default: return send_chunk();
    }
  }

  void check() {
    for (auto actions = machine_.take_actions(); !actions.empty(); actions = machine_.take_actions()) {
      for (ServerAction& next : actions) std::visit([this](auto& one) { take(one); }, next);
    }
    ASSERT_LE(machine_.upload_bytes(), kRoom);
    ASSERT_LE(machine_.question_bytes(), limits().question_bytes_max);
    ASSERT_LE(machine_.jobs(), limits().calls_max);
    check_counts();
    ASSERT_LE(machine_.sessions(), limits().clients_max);
    std::size_t calls = 0;
    for (const auto& [peer, client] : clients_) calls += client.calls.size();
    ASSERT_EQ(machine_.calls(), calls) << "every call is known to both sides, or to none";
  }

  void end() {
    while (!clients_.empty()) {
      machine_.on_bye(clients_.begin()->first);
      check();
    }
    while (!works_.empty()) {
      begin_work();
      finish_in_vain();
      check();
    }
    ASSERT_EQ(machine_.calls(), 0u);
    ASSERT_EQ(machine_.upload_bytes(), 0u) << "who left in the middle leaves nothing";
    ASSERT_EQ(machine_.owners(), 0u) << "nothing is remembered of who has nothing here";
  }

  std::uint64_t stored() const { return stored_; }
  std::uint64_t dropped() const { return dropped_; }
  std::uint64_t worked_in_vain() const { return worked_in_vain_; }

 private:
  struct Put {
    Ticket ticket = 0;
    std::shared_ptr<const Upload> upload;  ///< It was invited.
    std::uint64_t sent = 0;
    std::uint64_t credit = 0;
    bool planned = false;
    bool storing = false;              ///< Everything came.
    std::uint64_t question_bytes = 0;  ///< Of its manifest, while no worker has it.
  };
  struct Client {
    std::map<std::uint64_t, Put> calls;
  };

  /// What a worker has, or will have.
  struct Work {
    bool begun = false;
    std::uint64_t question_bytes = 0;
    std::uint64_t upload_bytes = 0;
    std::string owner;
  };

  static ServerLimits limits() {
    return {.clients_max = 3,
            .clients_per_key_max = 2,
            .calls_per_client_max = 4,
            .calls_per_key_max = 6,
            .calls_max = 9,
            .question_bytes_max = 5 * kTextBytesMax,
            .question_bytes_per_key_max = 3 * kTextBytesMax,
            .upload_bytes_max = kRoom,
            .window_bytes = kWindow,
            .silence = std::chrono::seconds(5),
            .stall = std::chrono::seconds(3)};
  }
  static std::byte byte_at(std::uint64_t request, std::uint64_t offset) {
    return static_cast<std::byte>(request * 31 + offset * 7);
  }
  Peer some_peer() { return "peer" + std::to_string(random_() % 4); }
  /// All but one have one key, and that one has none.
  static std::string key_of(const Peer& peer) { return peer == "peer3" ? "" : "key"; }
  static std::string owner_of(const Peer& peer) { return peer == "peer3" ? peer : "key"; }
  Put* some_call(Peer* peer, std::uint64_t* request) {
    *peer = some_peer();
    const auto client = clients_.find(*peer);
    if (client == clients_.end() || client->second.calls.empty()) return nullptr;
    auto at = client->second.calls.begin();
    std::advance(at, random_() % client->second.calls.size());
    *request = at->first;
    return &at->second;
  }

  /// The room is what workers have and what clients were invited to send.
  void check_counts() {
    std::uint64_t question_bytes = 0;
    std::uint64_t upload_bytes = 0;
    for (const auto& [ticket, work] : works_) {
      question_bytes += work.question_bytes;
      upload_bytes += work.upload_bytes;
    }
    for (const auto& [peer, client] : clients_) {
      for (const auto& [request, put] : client.calls) {
        // What came, and what may come.
        if (put.upload != nullptr && !put.storing) upload_bytes += std::min(put.upload->bytes(), put.sent + put.credit);
        question_bytes += put.question_bytes;
      }
    }
    for (const std::string owner : {"key", "peer3"}) {
      const auto is_theirs = [&](const auto& client) { return owner_of(client.first) == owner; };
      ASSERT_LE(std::ranges::count_if(clients_, is_theirs), limits().clients_per_key_max);
      std::size_t calls = 0, jobs = 0;
      std::uint64_t long_bytes = 0;
      for (const auto& [peer, client] : clients_) {
        if (owner_of(peer) != owner) continue;
        calls += client.calls.size();
        for (const auto& [request, put] : client.calls) long_bytes += put.question_bytes;
      }
      for (const auto& [ticket, work] : works_) {
        if (work.owner != owner) continue;
        ++jobs;
        long_bytes += work.question_bytes;
      }
      ASSERT_LE(std::max(calls, jobs), limits().calls_per_key_max);
      ASSERT_LE(long_bytes, limits().question_bytes_per_key_max);
    }
    ASSERT_EQ(machine_.jobs(), works_.size());
    ASSERT_EQ(machine_.question_bytes(), question_bytes);
    ASSERT_EQ(machine_.upload_bytes(), upload_bytes);
  }
  bool is_awaited(Ticket ticket) const {
    return std::ranges::any_of(clients_, [&](const auto& client) {
      return std::ranges::any_of(client.second.calls, [&](const auto& call) { return call.second.ticket == ticket; });
    });
  }
  void begin_work() {
    if (works_.empty()) return;
    auto at = works_.begin();
    std::advance(at, random_() % works_.size());
    at->second.begun = true;
  }
  /// A worker comes to the end of what nobody waits for.
  void finish_in_vain() {
    const auto at =
        std::ranges::find_if(works_, [&](const auto& work) { return work.second.begun && !is_awaited(work.first); });
    if (at == works_.end()) return;
    const Ticket ticket = at->first;
    works_.erase(at);
    ++worked_in_vain_;
    if (random_() % 2 == 0) return machine_.on_answered(ticket, done(1), now_);
    machine_.on_planned(ticket, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 100}}, nullptr), now_);
  }

  void hello() {
    const Peer peer = some_peer();
    machine_.on_hello(peer, 1, kProtocolVersion, now_, key_of(peer));
  }
  void ping() { machine_.on_ping(some_peer(), now_); }
  void call() {
    asking_ = some_peer();
    request_ = ++requests_;
    machine_.on_call(asking_, request_, random_() % 3 == 0 ? long_ : short_, now_);
  }
  void plan_or_answer() {
    Peer peer;
    std::uint64_t request = 0;
    Put* const put = some_call(&peer, &request);
    if (put == nullptr) return;
    if (put->planned && !put->storing) return;
    const auto work = works_.extract(put->ticket);
    if (put->planned || random_() % 4 == 0) {
      if (put->storing) ++stored_;
      const Ticket ticket = put->ticket;
      return machine_.on_answered(ticket, done(request), now_);
    }
    std::vector<Upload::Part> parts;
    for (std::uint32_t tensor = 0; tensor < 1 + random_() % 3; ++tensor) {
      parts.push_back({.tensor = tensor, .bytes = random_() % 900});
    }
    put->planned = true;
    put->question_bytes = work.mapped().question_bytes;
    machine_.on_planned(put->ticket, std::make_shared<Upload>(parts, nullptr), now_);
  }
  void send_chunk() {
    Peer peer;
    std::uint64_t request = 0;
    Put* const put = some_call(&peer, &request);
    if (put == nullptr || put->upload == nullptr || put->storing) return;
    const std::uint64_t bytes = std::min({put->credit, put->upload->bytes() - put->sent, 1 + random_() % 400});
    if (bytes == 0) return;
    std::vector<std::byte> chunk;
    for (std::uint64_t i = 0; i < bytes; ++i) chunk.push_back(byte_at(request, put->sent + i));
    const std::uint64_t offset = put->sent;
    put->sent += bytes;
    put->credit -= bytes;
    machine_.on_chunk(peer, request, offset, chunk, now_);
  }
  void abandon() {
    Peer peer;
    std::uint64_t request = 0;
    if (random_() % 6 == 0 && some_call(&peer, &request) != nullptr) machine_.on_abandon(peer, request, now_);
  }
  void leave() {
    if (random_() % 40 == 0) machine_.on_bye(some_peer());
  }
  /// What no client of ours says: it is put out for it.
  void lie() {
    if (random_() % 40 != 0) return;
    Peer peer;
    std::uint64_t request = 0;
    const Put* const put = some_call(&peer, &request);
    if (put == nullptr || put->storing) return;
    const std::vector<std::byte> chunk(random_() % 2 == 0 ? 0 : kWindow + 1);
    machine_.on_chunk(peer, request, put->sent + 1, chunk, now_);
    machine_.on_chunk(peer, request, put->sent, chunk, now_);
  }

  void take(action::Welcome& welcome) { clients_.try_emplace(welcome.peer); }
  void take(action::Pong& pong) {
    std::vector<std::uint64_t> running;
    for (const auto& [request, put] : clients_.at(pong.peer).calls) running.push_back(request);
    EXPECT_EQ(pong.running, running);
  }
  void take(action::Run& run) {
    clients_.at(asking_).calls[request_] = {.ticket = run.ticket};
    EXPECT_EQ(run.owner, owner_of(asking_));
    works_[run.ticket] = {.question_bytes = run.question == long_ ? long_->bytes() : 0, .owner = run.owner};
  }
  void take(action::Drop& drop) {
    const auto at = works_.find(drop.ticket);
    ASSERT_NE(at, works_.end());
    if (at->second.begun) return;
    works_.erase(at);
    ++dropped_;
    machine_.on_dropped(drop.ticket, now_);
  }
  void take(action::Reply& answered) {
    const auto* const answer = flatbuffers::GetRoot<wire::Reply>(answered.message.data());
    EXPECT_EQ(clients_.at(answered.peer).calls.erase(answer->request()), 1u) << "an answer that nobody waits for";
  }
  void take(action::Refuse& refuse) {
    const auto client = clients_.find(refuse.peer);
    if (client != clients_.end()) client->second.calls.erase(refuse.request);
  }
  void take(action::Invite& invite) {
    Put& put = clients_.at(invite.peer).calls.at(invite.request);
    put.upload = invite.upload;
    put.credit = kWindow;
  }
  void take(action::Credit& credit) { clients_.at(credit.peer).calls.at(credit.request).credit += credit.bytes; }
  void take(action::Store& store) {
    works_[store.ticket] = {.upload_bytes = store.upload->bytes(), .owner = store.owner};
    for (auto& [peer, client] : clients_) {
      const auto at = client.calls.find(store.request);
      if (at == client.calls.end()) continue;
      at->second.storing = true;
      at->second.planned = true;
      works_[store.ticket].question_bytes = std::exchange(at->second.question_bytes, 0);
    }
    std::uint64_t offset = 0;
    for (const Upload::Part& part : store.upload->parts()) {
      const Bytes bytes = store.upload->bytes_of(part.tensor).value();
      ASSERT_EQ(bytes.size(), part.bytes);
      for (const std::byte byte : bytes) ASSERT_EQ(byte, byte_at(store.request, offset++));
    }
  }
  void take(action::EndSession& end) { clients_.erase(end.peer); }

  std::mt19937_64 random_;
  Time now_{};
  ServerMachine machine_;
  std::map<Peer, Client> clients_;
  std::map<Ticket, Work> works_;
  const Question short_ = question();
  const Question long_ = question(2 * kTextBytesMax);
  Peer asking_;
  std::uint64_t request_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t worked_in_vain_ = 0;
};

TEST(ServerMachine, KeepsItsLimitsAndLosesNothingWhateverClientsDo) {
  std::uint64_t stored = 0;
  std::uint64_t dropped = 0;
  std::uint64_t worked_in_vain = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int i = 0; i < 3000; ++i) {
      world.step();
      world.check();
      if (testing::Test::HasFatalFailure()) return;
    }
    world.end();
    stored += world.stored();
    dropped += world.dropped();
    worked_in_vain += world.worked_in_vain();
  }
  EXPECT_GT(stored, 1000u) << "the random steps come to an end now and then";
  EXPECT_GT(dropped, 100u);
  EXPECT_GT(worked_in_vain, 100u);
}

TEST(ServerMachine, SaysWhichVersionItSpeaks) {
  ServerMachine machine({}, 1);
  machine.on_hello("a", 1, kProtocolVersion + 1, Time());
  const auto actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  const auto& refuse = std::get<action::Refuse>(actions[0]);
  EXPECT_EQ(refuse.error.code(), Code::unsupported);
  EXPECT_EQ(machine.sessions(), 0u);
}

TEST(ServerMachine, WhatIsLargerThanItsRoomIsRefusedAndWhatFindsNoneWaits) {
  ServerMachine machine({.upload_bytes_max = 100}, 1);
  machine.on_hello("a", 1, kProtocolVersion, Time());
  for (const std::uint64_t request : {2, 3, 4}) machine.on_call("a", request, question(), Time());
  static_cast<void>(machine.take_actions());
  const auto plan = [&](Ticket ticket, std::uint64_t bytes) {
    machine.on_planned(ticket, std::make_shared<Upload>(std::vector<Upload::Part>{{0, bytes}}, nullptr), Time());
  };
  plan(1, 101);
  plan(2, 60);
  plan(3, 60);
  auto actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<action::Refuse>(actions[0]).error.code(), Code::out_of_space);
  EXPECT_EQ(std::get<action::Invite>(actions[1]).request, 3u);
  machine.on_abandon("a", 3, Time());
  actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<action::Refuse>(actions[0]).error.code(), Code::cancelled);
  EXPECT_EQ(std::get<action::Invite>(actions[1]).request, 4u);
}

TEST(ServerMachine, WhoComesBackGetsNoMoreWorkers) {
  ServerMachine machine({.calls_per_client_max = 2, .calls_max = 5}, 1);
  std::vector<Ticket> begun;
  std::size_t drops = 0;
  std::size_t refused = 0;
  for (int round = 0; round < 4; ++round) {
    machine.on_hello("a", 1, kProtocolVersion, Time());
    for (const std::uint64_t request : {2, 3}) machine.on_call("a", request, question(), Time());
    machine.on_bye("a");
    for (const ServerAction& next : machine.take_actions()) {
      if (const auto* const run = std::get_if<action::Run>(&next)) begun.push_back(run->ticket);
      if (std::holds_alternative<action::Drop>(next)) ++drops;
      const auto* const refuse = std::get_if<action::Refuse>(&next);
      if (refuse == nullptr) continue;
      EXPECT_EQ(refuse->error.code(), Code::out_of_space);
      ++refused;
    }
  }
  EXPECT_EQ(begun.size(), 5u) << "all of them are with workers, though nobody waits for them";
  EXPECT_EQ(drops, 5u);
  EXPECT_EQ(refused, 3u);
  machine.on_dropped(begun[0], Time());
  for (std::size_t i = 1; i < begun.size(); ++i) machine.on_answered(begun[i], done(2), Time());
  EXPECT_EQ(machine.jobs(), 0u);
  for (const ServerAction& next : machine.take_actions()) EXPECT_FALSE(std::holds_alternative<action::Reply>(next));
}

TEST(ServerMachine, NamesSoManyLateCallsOfAClientOnly) {
  ServerMachine machine({.calls_per_client_max = 2}, 1);
  machine.on_hello("a", 1, kProtocolVersion, Time());
  machine.close_door(LateCalls::wait);
  for (const std::uint64_t request : {2, 3, 4}) machine.on_call("a", request, question(), Time());
  machine.on_ping("a", Time());
  const auto actions = machine.take_actions();
  EXPECT_EQ(std::get<action::Pong>(actions.back()).running, (std::vector<std::uint64_t>{2, 3}));
}

TEST(ServerMachine, LongQuestionsHaveALimitAndShortOnesPass) {
  ServerMachine machine({.question_bytes_max = 3 * kTextBytesMax}, 1);
  machine.on_hello("a", 1, kProtocolVersion, Time());
  machine.on_call("a", 2, question(2 * kTextBytesMax), Time());
  static_cast<void>(machine.take_actions());
  machine.on_call("a", 3, question(2 * kTextBytesMax), Time());
  machine.on_call("a", 4, question(), Time());
  auto actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<action::Refuse>(actions[0]).error.code(), Code::out_of_space);
  EXPECT_TRUE(std::holds_alternative<action::Run>(actions[1]));
  machine.on_bye("a");
  machine.on_hello("a", 1, kProtocolVersion, Time());
  machine.on_call("a", 2, question(2 * kTextBytesMax), Time());
  actions = machine.take_actions();
  EXPECT_TRUE(std::holds_alternative<action::Refuse>(actions.back())) << "a worker still has the first one";
  machine.on_answered(1, done(2), Time());
  machine.on_call("a", 3, question(2 * kTextBytesMax), Time());
  actions = machine.take_actions();
  EXPECT_TRUE(std::holds_alternative<action::Run>(actions.back()));
}

TEST(ServerMachine, APutsManifestCountsUntilThePutEnds) {
  ServerMachine machine({.question_bytes_max = 3 * kTextBytesMax}, 1);
  machine.on_hello("a", 1, kProtocolVersion, Time());
  const auto is_taken = [&](std::uint64_t request) {
    machine.on_call("a", request, question(2 * kTextBytesMax), Time());
    return std::holds_alternative<action::Run>(machine.take_actions().back());
  };
  EXPECT_TRUE(is_taken(2));
  machine.on_planned(1, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 80}}, nullptr), Time());
  EXPECT_FALSE(is_taken(3)) << "the client has not sent its tensors yet";
  machine.on_chunk("a", 2, 0, std::vector<std::byte>(80), Time());
  EXPECT_FALSE(is_taken(4)) << "a worker stores it";
  machine.on_answered(1, done(2), Time());
  EXPECT_TRUE(is_taken(5));
}

TEST(ServerMachine, AnUploadHasItsRoomUntilItIsStored) {
  ServerMachine machine({.upload_bytes_max = 100}, 1);
  for (const Peer peer : {"a", "b"}) {
    machine.on_hello(peer, 1, kProtocolVersion, Time());
    machine.on_call(peer, 2, question(), Time());
  }
  for (const Ticket ticket : {1, 2}) {
    machine.on_planned(ticket, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 80}}, nullptr), Time());
  }
  machine.on_chunk("a", 2, 0, std::vector<std::byte>(80), Time());
  machine.on_bye("a");
  machine.on_tick(Time());
  for (const ServerAction& next : machine.take_actions()) {
    const auto* const invite = std::get_if<action::Invite>(&next);
    EXPECT_TRUE(invite == nullptr || invite->peer == "a") << "its bytes are with a worker";
  }
  EXPECT_EQ(machine.upload_bytes(), 80u);
  machine.on_answered(1, done(2), Time());
  const auto actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Invite>(actions[0]).peer, "b");
}

TEST(ServerMachine, InvitesAgainWhenMoreIsWanted) {
  ServerMachine machine({.upload_bytes_max = 2000}, 1);
  machine.on_hello("a", 1, kProtocolVersion, Time());
  machine.on_call("a", 2, question(), Time());
  machine.on_planned(1, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 600}, {1, 400}}, nullptr), Time());
  EXPECT_EQ(machine.upload_bytes(), 1000u);
  machine.on_chunk("a", 2, 0, std::vector<std::byte>(1000), Time());
  static_cast<void>(machine.take_actions());
  machine.on_planned(1, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 700}}, nullptr), Time());
  const auto actions = machine.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Invite>(actions[0]).upload->bytes(), 700u);
  EXPECT_EQ(machine.upload_bytes(), 700u);
  machine.on_chunk("a", 2, 0, std::vector<std::byte>(700), Time());
  EXPECT_EQ(machine.take_actions().size(), 1u);
  machine.on_answered(1, done(2), Time());
  EXPECT_EQ(machine.upload_bytes(), 0u);
}

}  // namespace
}  // namespace freshet::rpc
