// SPDX-License-Identifier: Apache-2.0
/// What all clients of a repository's server share, and how much of it one key or one upload can have.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "repo/serve/server/server_machine.h"

namespace freshet::rpc {
namespace {

/// A question of a little more than so many bytes.
Question question_of(std::size_t bytes = 0) {
  const Encoded message = request(1, call_of<AskLatest>(std::string(bytes, 'm')));
  auto received = Received<wire::Request>::open(std::as_bytes(std::span(message.data(), message.size())));
  return std::make_shared<const Received<wire::Request>>(std::move(received).value());
}

Encoded stored_reply(std::uint64_t request) { return answer_to<AbortPut>(request); }

TEST(ServerShares, OneKeyLeavesRoomForOthers) {
  ServerMachine machine({.clients_max = 8,
                         .clients_per_key_max = 2,
                         .calls_per_client_max = 3,
                         .calls_per_key_max = 4,
                         .calls_max = 100,
                         .question_bytes_per_key_max = 3 * kTextBytesMax},
                        1);
  const auto hello = [&](const Peer& peer, std::string_view key) {
    machine.on_hello(peer, 1, kProtocolVersion, Time(), key);
    const auto actions = machine.take_actions();
    const auto* const refuse = std::get_if<action::Refuse>(&actions.at(0));
    return refuse == nullptr ? std::string() : refuse->error.message();
  };
  EXPECT_EQ(hello("a", "many"), "");
  EXPECT_EQ(hello("b", "many"), "");
  EXPECT_NE(hello("c", "many").find("2 clients with this key"), std::string::npos);
  EXPECT_EQ(hello("d", "few"), "");
  std::uint64_t request = 0;
  const auto call = [&](const Peer& peer, std::size_t bytes = 0) {
    machine.on_call(peer, ++request, question_of(bytes), Time());
    const auto actions = machine.take_actions();
    const auto* const refuse = std::get_if<action::Refuse>(&actions.at(0));
    return refuse == nullptr ? std::string() : refuse->error.message();
  };
  EXPECT_EQ(call("a", 2 * kTextBytesMax), "");
  EXPECT_NE(call("b", 2 * kTextBytesMax).find("long requests of this key"), std::string::npos);
  EXPECT_EQ(call("d", 2 * kTextBytesMax), "");
  EXPECT_EQ(call("a"), "");
  EXPECT_EQ(call("a"), "");
  EXPECT_NE(call("a").find("3 requests of this client"), std::string::npos);
  EXPECT_EQ(call("b"), "");
  EXPECT_NE(call("b").find("4 requests of this key"), std::string::npos);
  EXPECT_EQ(call("d"), "");
  machine.on_bye("a");
  (void)machine.take_actions();
  EXPECT_NE(call("b").find("4 requests of this key"), std::string::npos) << "workers still have them";
}

/// A put of `bytes` whose client pings, and sends so many bytes a second; another one waits for room if `crowded`.
/// Answers after how many seconds it lost its room, or nothing.
std::optional<int> lost_room_after(std::uint64_t bytes, std::uint64_t bytes_a_second, bool crowded, int seconds) {
  ServerMachine machine({.upload_bytes_max = bytes, .upload_rate_min = 100, .upload_rate_min_crowded = 1000}, 1);
  for (const Peer peer : {"slow", "other"}) machine.on_hello(peer, 1, kProtocolVersion, Time());
  machine.on_call("slow", 2, question_of(), Time());
  machine.on_call("other", 2, question_of(), Time());
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

TEST(ServerShares, AnUploadThatDripsLosesItsRoom) {
  EXPECT_EQ(lost_room_after(1 << 20, 1, /*crowded=*/false, 1000), 61);
  EXPECT_EQ(lost_room_after(1 << 20, 1, /*crowded=*/true, 1000), 61);
  // After t seconds 200 t bytes have come, and 100 (t - 60) must have.
  EXPECT_EQ(lost_room_after(1 << 20, 200, /*crowded=*/false, 1000), std::nullopt);
  // Now 1000 (t - 60) must have.
  EXPECT_EQ(lost_room_after(1 << 20, 200, /*crowded=*/true, 1000), 76);
  EXPECT_EQ(lost_room_after(1 << 20, 1000, /*crowded=*/true, 1000), std::nullopt);
}

/// Uploads in a room of 1000 bytes, with windows of 40.
class UploadRoom : public testing::Test {
 protected:
  void begin(const Peer& peer, std::uint64_t bytes, std::string_view key = {}) {
    machine_.on_hello(peer, 1, kProtocolVersion, now_, key);
    machine_.on_call(peer, 2, question_of(), now_);
    for (const ServerAction& next : machine_.take_actions()) {
      const auto* const run = std::get_if<action::Run>(&next);
      if (run == nullptr) continue;
      machine_.on_planned(run->ticket, std::make_shared<Upload>(std::vector<Upload::Part>{{0, bytes}}, nullptr), now_);
    }
    take();
  }
  /// As far as there is credit.
  void send(const Peer& peer, std::uint64_t bytes) {
    while (bytes > 0 && credit_[peer] > 0) {
      const std::uint64_t chunk = std::min({bytes, credit_[peer], std::uint64_t{10}});
      machine_.on_chunk(peer, 2, sent_[peer], std::vector<std::byte>(chunk), now_);
      sent_[peer] += chunk;
      credit_[peer] -= chunk;
      bytes -= chunk;
      take();
    }
  }
  void pass(int seconds, const std::vector<Peer>& peers) {
    for (int i = 0; i < seconds; ++i) {
      now_ += std::chrono::seconds(1);
      for (const Peer& peer : peers) machine_.on_ping(peer, now_);
      machine_.on_tick(now_);
      take();
    }
  }
  void take() {
    for (auto actions = machine_.take_actions(); !actions.empty(); actions = machine_.take_actions()) {
      for (const ServerAction& next : actions) {
        if (const auto* const invite = std::get_if<action::Invite>(&next)) credit_[invite->peer] = kSmallWindow;
        if (const auto* const credit = std::get_if<action::Credit>(&next)) credit_[credit->peer] += credit->bytes;
        if (const auto* const store = std::get_if<action::Store>(&next)) stored_.push_back(store->ticket);
        if (const auto* const refuse = std::get_if<action::Refuse>(&next)) refused_.push_back(refuse->peer);
      }
    }
    EXPECT_LE(machine_.upload_bytes(), 1000u);
  }

  static constexpr std::uint64_t kSmallWindow = 40;
  ServerMachine machine_{
      {.upload_bytes_max = 1000, .window_bytes = kSmallWindow, .upload_rate_min = 1, .upload_rate_min_crowded = 10}, 1};
  Time now_{};
  std::map<Peer, std::uint64_t> credit_;
  std::map<Peer, std::uint64_t> sent_;
  std::vector<Ticket> stored_;
  std::vector<Peer> refused_;
};

TEST_F(UploadRoom, OneByteOfALargeUploadKeepsNobodyOut) {
  begin("hog", 1000);
  send("hog", 1);
  begin("honest", 500);
  EXPECT_EQ(credit_["honest"], 0u) << "the first keeps the right to its room while it keeps up";
  pass(4, {"hog", "honest"});
  EXPECT_EQ(credit_["honest"], kSmallWindow);
  send("honest", 500);
  EXPECT_EQ(stored_, (std::vector<Ticket>{2}));
  EXPECT_TRUE(refused_.empty()) << "the slow one goes on";
}

TEST_F(UploadRoom, WhatDoesNotFitTogetherGoesOnOneAfterTheOther) {
  begin("first", 600);
  begin("second", 600);
  send("second", 600);
  EXPECT_EQ(sent_["second"], 400u) << "beside the rest of the first";
  pass(1, {"first", "second"});
  send("first", 600);
  EXPECT_EQ(stored_, (std::vector<Ticket>{1}));
  machine_.on_answered(1, stored_reply(2), now_);
  take();
  send("second", 200);
  EXPECT_EQ(stored_, (std::vector<Ticket>{1, 2}));
}

TEST_F(UploadRoom, WhereNoneCanGoOnTheLastOneFailsAndTheFirstOneEnds) {
  begin("first", 750);
  send("first", 350);
  begin("second", 750);
  pass(4, {"first", "second"});
  send("second", 750);
  EXPECT_LT(sent_["second"], 750u) << "it took what the first left while that paused";
  EXPECT_TRUE(refused_.empty());
  send("first", 400);
  EXPECT_EQ(refused_, (std::vector<Peer>{"second"}));
  EXPECT_EQ(stored_, (std::vector<Ticket>{1}));
}

TEST_F(UploadRoom, LargeOnesThatGrewBesideASlowOneDoNotKeepEachOtherFromTheRest) {
  begin("slow", 120);
  send("slow", 1);
  begin("second", 750);
  begin("third", 750);
  while (credit_["second"] + credit_["third"] > 0) {
    send("second", 10);
    send("third", 10);
  }
  send("slow", 119);
  EXPECT_EQ(stored_, (std::vector<Ticket>{1}));
  machine_.on_answered(1, stored_reply(2), now_);
  take();
  EXPECT_TRUE(refused_.empty()) << "it left room";
  while (refused_.empty() && credit_["second"] + credit_["third"] > 0) {
    send("third", 10);
    send("second", 10);
  }
  EXPECT_EQ(refused_, (std::vector<Peer>{"third"}));
  send("second", 750 - sent_["second"]);
  EXPECT_EQ(stored_, (std::vector<Ticket>{1, 2}));
}

TEST_F(UploadRoom, OneKeysUploadsDoNotKeepEachOtherFromTheRest) {
  begin("first", 750, "key");
  send("first", 10);
  begin("second", 750, "key");
  pass(4, {"first", "second"});
  send("second", 750);
  EXPECT_LE(sent_["second"], 500u) << "its key has half of the room";
  EXPECT_TRUE(refused_.empty());
  send("first", 740);
  EXPECT_EQ(refused_, (std::vector<Peer>{"second"}));
  EXPECT_EQ(stored_, (std::vector<Ticket>{1}));
}

TEST_F(UploadRoom, NoneFailsWhileOneThatIsBeingStoredWillLeaveRoom) {
  begin("stored", 300);
  send("stored", 300);
  begin("first", 600);
  send("first", 300);
  begin("second", 600);
  pass(4, {"first", "second"});
  send("second", 600);
  send("first", 300);
  EXPECT_EQ(credit_["first"] + credit_["second"], 0u);
  EXPECT_TRUE(refused_.empty());
  machine_.on_answered(1, stored_reply(2), now_);
  take();
  send("first", 600 - sent_["first"]);
  EXPECT_TRUE(refused_.empty());
  EXPECT_EQ(stored_, (std::vector<Ticket>{1, 2}));
}

TEST_F(UploadRoom, AKeysFurtherUploadsHaveHalfOfIt) {
  begin("first", 100, "key");
  begin("second", 900, "key");
  send("second", 900);
  EXPECT_EQ(sent_["second"] + kSmallWindow, 500u) << "with the first one's window";
  begin("other", 400, "another key");
  send("other", 400);
  EXPECT_EQ(stored_, (std::vector<Ticket>{3}));
}

}  // namespace
}  // namespace freshet::rpc
