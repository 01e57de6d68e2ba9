// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/server_machine.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kWindow = 1000;
constexpr std::uint64_t kRoom = 5000;
constexpr std::uint64_t kRing = 512;

Encoded done(std::uint64_t request) {
  Builder builder;
  return reply(builder, request, wire::CreateDone(builder));
}

/// A server without sockets and a repository without versions: puts of random sizes by clients that leave, fall silent,
/// abandon and lie, and what must hold all the while.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed), machine_(limits(), seed) {}

  void step() {
    now_ += std::chrono::milliseconds(random_() % 50);
    switch (random_() % 14) {
      case 0: return hello();
      case 1: return call();
      case 2: return abandon();
      case 3: return leave();
      case 4: return machine_.on_tick(now_);
      case 5: return plan_or_answer();
      case 6: return ping();
      case 7: return lie();
      case 8: return take_from_lane();
      default: return send_chunk();
    }
  }

  void check() {
    for (ServerAction& next : machine_.take_actions()) std::visit([this](auto& one) { take(one); }, next);
    ASSERT_LE(machine_.upload_bytes(), kRoom);
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
    ASSERT_EQ(machine_.calls(), 0u);
    ASSERT_EQ(machine_.upload_bytes(), 0u) << "who left in the middle leaves nothing";
  }

  std::uint64_t stored() const { return stored_; }
  std::uint64_t streamed() const { return streamed_; }

 private:
  struct Put {
    Ticket ticket = 0;
    std::shared_ptr<const Upload> upload;  ///< It was invited.
    std::uint64_t sent = 0;
    std::uint64_t credit = 0;
    std::uint64_t taken = 0;  ///< Of what came in a lane.
    bool planned = false;
    bool storing = false;    ///< Everything came.
    bool streaming = false;  ///< It is stored while it comes.
  };
  struct Client {
    std::map<std::uint64_t, Put> calls;
  };

  static ServerLimits limits() {
    return {.clients_max = 3,
            .calls_per_client_max = 4,
            .calls_max = 9,
            .upload_bytes_max = kRoom,
            .window_bytes = kWindow,
            .streams_max = 2,
            .silence = std::chrono::seconds(5),
            .stall = std::chrono::seconds(3)};
  }
  static std::byte byte_at(std::uint64_t request, std::uint64_t offset) {
    return static_cast<std::byte>(request * 31 + offset * 7);
  }
  Peer some_peer() { return "peer" + std::to_string(random_() % 4); }
  Put* some_call(Peer* peer, std::uint64_t* request) {
    *peer = some_peer();
    const auto client = clients_.find(*peer);
    if (client == clients_.end() || client->second.calls.empty()) return nullptr;
    auto at = client->second.calls.begin();
    std::advance(at, random_() % client->second.calls.size());
    *request = at->first;
    return &at->second;
  }

  void hello() { machine_.on_hello(some_peer(), 1, kProtocolVersion, now_); }
  void ping() { machine_.on_ping(some_peer(), now_); }
  void call() {
    asking_ = some_peer();
    request_ = ++requests_;
    machine_.on_call(asking_, request_, nullptr, now_);
  }
  void plan_or_answer() {
    Peer peer;
    std::uint64_t request = 0;
    Put* const put = some_call(&peer, &request);
    if (put == nullptr) return;
    if (put->planned && !put->storing && !(put->streaming && random_() % 8 == 0)) return;
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
    std::shared_ptr<LaneStream> stream;
    if (random_() % 2 == 0) stream = std::make_shared<LaneStream>(ring_, nullptr);
    machine_.on_planned(put->ticket, std::make_shared<Upload>(parts, nullptr, std::move(stream)), now_);
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
    if (!put->streaming) return machine_.on_chunk(peer, request, offset, chunk, now_);
    if (put->sent == put->upload->bytes()) put->storing = true;
    machine_.on_announced(peer, request, offset, bytes, now_);
  }
  void take_from_lane() {
    Peer peer;
    std::uint64_t request = 0;
    Put* const put = some_call(&peer, &request);
    if (put == nullptr || !put->streaming || put->taken == put->sent) return;
    const std::uint64_t bytes = 1 + random_() % (put->sent - put->taken);
    put->taken += bytes;
    machine_.on_taken(put->ticket, bytes, now_);
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
    if (put->streaming && random_() % 2 == 0) {
      const std::uint64_t left = put->upload->bytes() - put->sent;
      const std::uint64_t too_many = std::min(put->credit, left) + 1;
      return machine_.on_announced(peer, request, put->sent, random_() % 2 == 0 ? too_many : 0, now_);
    }
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
  void take(action::Run& run) { clients_.at(asking_).calls[request_] = {.ticket = run.ticket}; }
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
    put.streaming = invite.upload->stream() != nullptr;
    put.credit = put.streaming ? kRing : kWindow;
    if (put.streaming) ++streamed_;
  }
  void take(action::Credit& credit) { clients_.at(credit.peer).calls.at(credit.request).credit += credit.bytes; }
  void take(action::Store& store) {
    if (store.upload->stream() != nullptr && store.upload->bytes() != 0) return;  // While it comes.
    for (auto& [peer, client] : clients_) {
      const auto at = client.calls.find(store.request);
      if (at == client.calls.end()) continue;
      at->second.storing = true;
      at->second.planned = true;
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
  Peer asking_;
  std::uint64_t request_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t stored_ = 0;
  std::uint64_t streamed_ = 0;
  const std::vector<std::byte> ring_ = std::vector<std::byte>(kRing);
};

TEST(ServerMachine, KeepsItsLimitsAndLosesNothingWhateverClientsDo) {
  std::uint64_t stored = 0;
  std::uint64_t streamed = 0;
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
    streamed += world.streamed();
  }
  EXPECT_GT(streamed, 500u) << "some puts come in a lane";
  EXPECT_GT(stored, 1000u) << "the random steps come to an end now and then";
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
  for (const std::uint64_t request : {2, 3, 4}) machine.on_call("a", request, nullptr, Time());
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

/// A put of `bytes` whose client pings, and sends so many bytes a second; another one waits for room if `crowded`.
/// Answers after how many seconds it lost its room, or nothing.
std::optional<int> lost_room_after(std::uint64_t bytes, std::uint64_t bytes_a_second, bool crowded, int seconds) {
  ServerMachine machine({.upload_bytes_max = bytes, .upload_rate_min = 100, .upload_rate_min_crowded = 1000}, 1);
  for (const Peer peer : {"slow", "other"}) machine.on_hello(peer, 1, kProtocolVersion, Time());
  machine.on_call("slow", 2, nullptr, Time());
  machine.on_call("other", 2, nullptr, Time());
  const auto plan = [&](Ticket ticket) {
    machine.on_planned(ticket, std::make_shared<Upload>(std::vector<Upload::Part>{{0, bytes}}, nullptr), Time());
  };
  plan(1);
  if (crowded) plan(2);
  static_cast<void>(machine.take_actions());
  const std::vector<std::byte> chunk(bytes_a_second);
  for (int second = 1; second <= seconds; ++second) {
    const Time now = Time(std::chrono::seconds(second));
    for (const Peer peer : {"slow", "other"}) machine.on_ping(peer, now);
    machine.on_chunk("slow", 2, static_cast<std::uint64_t>(second - 1) * bytes_a_second, chunk, now);
    machine.on_tick(now);
    for (const ServerAction& next : machine.take_actions()) {
      const auto* const refuse = std::get_if<action::Refuse>(&next);
      if (refuse == nullptr) continue;
      EXPECT_EQ(refuse->peer, "slow");
      EXPECT_EQ(refuse->error.code(), Code::timed_out);
      EXPECT_EQ(machine.upload_bytes(), crowded ? bytes : 0) << "the room is the other one's";
      return second;
    }
  }
  return std::nullopt;
}

TEST(ServerMachine, AnUploadThatDripsLosesItsRoom) {
  EXPECT_EQ(lost_room_after(1 << 20, 1, /*crowded=*/false, 1000), 61);
  EXPECT_EQ(lost_room_after(1 << 20, 1, /*crowded=*/true, 1000), 61);
  // After t seconds 200 t bytes have come, and 100 (t - 60) must have.
  EXPECT_EQ(lost_room_after(1 << 20, 200, /*crowded=*/false, 1000), std::nullopt);
  // Now 1000 (t - 60) must have.
  EXPECT_EQ(lost_room_after(1 << 20, 200, /*crowded=*/true, 1000), 76);
  EXPECT_EQ(lost_room_after(1 << 20, 1000, /*crowded=*/true, 1000), std::nullopt);
}

/// One client's put of 1000 bytes, invited to send them in a lane of 512.
class LanePut : public testing::Test {
 protected:
  LanePut() {
    machine_.on_hello("a", 1, kProtocolVersion, Time());
    machine_.on_call("a", 2, nullptr, Time());
    static_cast<void>(machine_.take_actions());
    plan();
    const auto actions = machine_.take_actions();
    EXPECT_EQ(actions.size(), 2u);
    EXPECT_NE(std::get<action::Invite>(actions.at(0)).upload->stream(), nullptr);
    EXPECT_EQ(std::get<action::Store>(actions.at(1)).ticket, 1u) << "it is stored while it comes";
  }
  void plan() {
    auto upload = std::make_shared<Upload>(std::vector<Upload::Part>{{0, 600}, {1, 400}}, nullptr,
                                           std::make_shared<LaneStream>(ring_, nullptr));
    machine_.on_planned(1, std::move(upload), Time());
  }
  bool is_put_out() {
    const auto actions = machine_.take_actions();
    if (actions.size() != 2) return false;
    const auto* const refuse = std::get_if<action::Refuse>(&actions[0]);
    EXPECT_EQ(machine_.upload_bytes(), 0u);
    return refuse != nullptr && refuse->request == 0 && std::holds_alternative<action::EndSession>(actions[1]);
  }
  void announce(std::uint64_t offset, std::uint64_t bytes) { machine_.on_announced("a", 2, offset, bytes, Time()); }

  const std::vector<std::byte> ring_ = std::vector<std::byte>(kRing);
  ServerMachine machine_{{.upload_bytes_max = 2000, .streams_max = 1}, 1};
};

TEST_F(LanePut, TakesOneLargestPartOfTheServersRoom) { EXPECT_EQ(machine_.upload_bytes(), 600u); }

TEST_F(LanePut, WhatIsDoneWithMayBeWrittenAgain) {
  announce(0, 512);
  EXPECT_TRUE(machine_.take_actions().empty());
  machine_.on_taken(1, 100, Time());
  auto actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Credit>(actions[0]).bytes, 100u);
  announce(512, 100);
  EXPECT_TRUE(machine_.take_actions().empty());
  machine_.on_taken(1, 512, Time());
  static_cast<void>(machine_.take_actions());
  announce(612, 388);
  machine_.on_taken(1, 300, Time());
  EXPECT_TRUE(machine_.take_actions().empty()) << "nothing is left to send";
  EXPECT_EQ(machine_.upload_bytes(), 600u) << "until it is stored";
  machine_.on_answered(1, done(2), Time());
  EXPECT_EQ(machine_.upload_bytes(), 0u);
}

TEST_F(LanePut, WhoWritesOverWhatIsNotDoneWithIsPutOut) {
  announce(0, 500);
  EXPECT_TRUE(machine_.take_actions().empty());
  announce(500, 13);
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoAnnouncesNothingIsPutOut) {
  announce(0, 0);
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoAnnouncesMoreThanAnythingHasIsPutOut) {
  announce(0, ~std::uint64_t{0});
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoAnnouncesSomewhereElseIsPutOut) {
  announce(1, 10);
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoAnnouncesMoreThanTheTensorsHaveIsPutOut) {
  announce(0, 512);
  machine_.on_taken(1, 512, Time());
  announce(512, 400);
  machine_.on_taken(1, 400, Time());
  static_cast<void>(machine_.take_actions());
  announce(912, 89);
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoSendsMoreAfterTheLastByteIsPutOut) {
  announce(0, 512);
  machine_.on_taken(1, 512, Time());
  announce(512, 488);
  static_cast<void>(machine_.take_actions());
  announce(1000, 1);
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoSendsItOverTheConnectionIsPutOut) {
  machine_.on_chunk("a", 2, 0, std::vector<std::byte>(10), Time());
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, WhoAnnouncesWhatComesOverTheConnectionIsPutOut) {
  machine_.on_call("a", 3, nullptr, Time());
  machine_.on_planned(2, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 600}}, nullptr), Time());
  static_cast<void>(machine_.take_actions());
  machine_.on_announced("a", 3, 0, 10, Time());
  EXPECT_TRUE(is_put_out());
}

TEST_F(LanePut, ASecondOneComesOverTheConnectionWhenThereAreTooMany) {
  machine_.on_call("a", 3, nullptr, Time());
  static_cast<void>(machine_.take_actions());
  machine_.on_planned(2,
                      std::make_shared<Upload>(std::vector<Upload::Part>{{0, 600}}, nullptr,
                                               std::make_shared<LaneStream>(ring_, nullptr)),
                      Time());
  const auto actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Invite>(actions[0]).upload->stream(), nullptr);
  machine_.on_abandon("a", 2, Time());
  EXPECT_EQ(machine_.upload_bytes(), 600u);
}

TEST_F(LanePut, OneThatIsTooLargeForTheConnectionWaitsAndHoldsUpNobody) {
  for (const std::uint64_t request : {3, 4}) machine_.on_call("a", request, nullptr, Time());
  static_cast<void>(machine_.take_actions());
  machine_.on_planned(2,
                      std::make_shared<Upload>(std::vector<Upload::Part>{{0, 1200}, {1, 1200}}, nullptr,
                                               std::make_shared<LaneStream>(ring_, nullptr)),
                      Time());
  EXPECT_TRUE(machine_.take_actions().empty());
  machine_.on_planned(3, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 60}}, nullptr), Time());
  auto actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Invite>(actions[0]).request, 4u);
  // A lane is free.
  machine_.on_abandon("a", 2, Time());
  actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 3u);
  EXPECT_EQ(std::get<action::Refuse>(actions[0]).error.code(), Code::cancelled);
  EXPECT_EQ(std::get<action::Invite>(actions[1]).request, 3u);
  EXPECT_EQ(std::get<action::Store>(actions[2]).request, 3u);
}

TEST_F(LanePut, OneThatStopsIsEndedUnlessItIsTheServerThatIsSlow) {
  announce(0, 512);
  machine_.on_ping("a", Time() + std::chrono::seconds(120));
  machine_.on_tick(Time() + std::chrono::seconds(120));
  EXPECT_EQ(machine_.calls(), 1u) << "the lane is full, and nothing of it was stored";
  machine_.on_taken(1, 300, Time() + std::chrono::seconds(120));
  machine_.on_ping("a", Time() + std::chrono::seconds(200));
  static_cast<void>(machine_.take_actions());
  machine_.on_tick(Time() + std::chrono::seconds(200));
  const auto actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Refuse>(actions[0]).error.code(), Code::timed_out);
  EXPECT_EQ(machine_.upload_bytes(), 0u);
}

TEST_F(LanePut, WhenMoreIsWantedTheClientIsInvitedAgain) {
  announce(0, 512);
  machine_.on_taken(1, 512, Time());
  announce(512, 488);
  machine_.on_taken(1, 488, Time());
  static_cast<void>(machine_.take_actions());
  machine_.on_planned(1, std::make_shared<Upload>(std::vector<Upload::Part>{{0, 700}}, nullptr), Time());
  const auto actions = machine_.take_actions();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<action::Invite>(actions[0]).upload->bytes(), 700u);
  EXPECT_EQ(machine_.upload_bytes(), 700u);
  machine_.on_chunk("a", 2, 0, std::vector<std::byte>(700), Time());
  EXPECT_EQ(machine_.take_actions().size(), 1u);
  machine_.on_answered(1, done(2), Time());
  EXPECT_EQ(machine_.upload_bytes(), 0u);
}

}  // namespace
}  // namespace freshet::rpc
