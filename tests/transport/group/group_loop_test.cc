// SPDX-License-Identifier: Apache-2.0
/// What a peer that asks and does not read can make a rank keep.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <zmq.hpp>

#include "core/base/format.h"
#include "tests/support/eventually.h"
#include "tests/support/free_port.h"
#include "transport/group/group.h"
#include "transport/group/messages.h"

namespace freshet::group {
namespace {

constexpr std::uint64_t kAsked = 60;
constexpr Duration kLong = std::chrono::seconds(60);

/// Two ranks that met, in this process. Rank 1 answers an empty question with nothing, and others at full length.
class GroupAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string meet = format("tcp://127.0.0.1:{}", free_port());
    const auto open = [&meet](Rank rank, GroupHandlers handlers) {
      GroupOptions options{.rank = rank, .ranks = 2, .meet = meet};
      options.times.silence = kLong;  // A loaded machine is no lost rank.
      return Group::open(options, std::move(handlers));
    };
    Result<std::unique_ptr<Group>> first = fail(Code::unavailable, "not opened");
    std::thread other([&] { first = open(0, {}); });
    auto second = open(1, {.on_ask = [this](Rank, Bytes question) -> Result<std::vector<std::byte>> {
                         if (question.empty()) return std::vector<std::byte>();
                         ++answered_;
                         return std::vector<std::byte>(kAnswerBytesMax);
                       }});
    other.join();
    ASSERT_TRUE(first) << first.error().message();
    ASSERT_TRUE(second) << second.error().message();
    zero_ = *std::move(first);
    one_ = *std::move(second);
  }
  static void ask(zmq::socket_t& peer, std::uint64_t number, std::size_t bytes) {
    const auto question = encode({.kind = Kind::ask, .number = number, .data = std::vector<std::byte>(bytes)});
    peer.send(zmq::buffer(question.data(), question.size()), zmq::send_flags::none);
  }

  std::atomic<std::uint64_t> answered_{0};
  std::unique_ptr<Group> zero_;
  std::unique_ptr<Group> one_;
};

TEST_F(GroupAnswers, ThatNobodyReadsAreLimitedInBytes) {
  zmq::context_t context;
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.set(zmq::sockopt::rcvhwm, 1);
  peer.set(zmq::sockopt::rcvtimeo, 100);
  peer.connect(zero_->peers()[1].address);
  for (std::uint64_t number = 1; number <= kAsked; ++number) ask(peer, number, 1);
  ASSERT_TRUE(came_true([&] { return answered_ == kAsked; }));
  // Answers leave in order: when this one is here, rank 1 has sent or dropped what it made before.
  ASSERT_TRUE(zero_->ask(1, {}).wait(kLong));
  std::uint64_t read = 0;
  for (std::uint64_t number = 0; number != kAsked + 1;) {
    zmq::message_t head;
    if (!peer.recv(head)) {
      ask(peer, kAsked + 1, 0);
      continue;
    }
    const auto message = decode({static_cast<const std::byte*>(head.data()), head.size()});
    ASSERT_TRUE(message) << message.error().message();
    number = message->number;
    zmq::message_t data;
    if (head.more()) {
      ASSERT_TRUE(peer.recv(data));
    }
    if (data.size() == kAnswerBytesMax) ++read;
  }
  EXPECT_GE(read, 16U) << "less than the limit";
  EXPECT_LT(read, 40U) << "64 MiB, and what lay in the kernel and at the reader";
  const auto whole = zero_->ask(1, {std::byte{1}}).wait(kLong);
  ASSERT_TRUE(whole) << whole.error().message();
  EXPECT_EQ(whole->bytes().size(), kAnswerBytesMax) << "others are answered";
}

}  // namespace
}  // namespace freshet::group
