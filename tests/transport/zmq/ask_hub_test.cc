// SPDX-License-Identifier: Apache-2.0
#include "transport/zmq/ask_hub.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <zmq.hpp>

#include "tests/support/eventually.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"
#include "transport/directory/directory.h"

namespace freshet {
namespace {

/// A publisher that answers each question with many words of which none is the answer.
class Talker {
 public:
  Talker() {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo, 10);
    socket_.bind("tcp://127.0.0.1:*");
    address_ = socket_.get(zmq::sockopt::last_endpoint);
    thread_ = std::jthread([this](const std::stop_token& stop) { talk(stop); });
  }
  std::string address() const { return address_; }

 private:
  void talk(const std::stop_token& stop) {
    const auto word = protocol::encode(protocol::UnknownSession{.session = 1});
    while (!stop.stop_requested()) {
      zmq::message_t asker;
      zmq::message_t question;
      if (!socket_.recv(asker) || !socket_.recv(question)) continue;
      for (int i = 0; i < 20; ++i) {
        zmq::message_t to;
        to.copy(asker);
        socket_.send(to, zmq::send_flags::sndmore);
        socket_.send(zmq::buffer(word), zmq::send_flags::none);
      }
    }
  }

  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::router};
  std::string address_;
  std::jthread thread_;
};

class AskHub : public ::testing::Test {
 protected:
  /// `on_first` is called with the first word; how many were looked at by the end, and how it ended.
  std::pair<int, Code> ask(Duration at_most, const std::function<void()>& on_first, const std::stop_token& stop = {}) {
    int words = 0;
    const SecurityOptions security;
    const auto answer = ask_hub({.at = talker_.address(),
                                 .security = security,
                                 .request = protocol::StatRequest{},
                                 .is_answer =
                                     [&](const protocol::Message&) {
                                       if (++words == 1) on_first();
                                       return false;
                                     }},
                                at_most, stop);
    return {words, answer ? Code::corrupt : answer.error().code()};
  }

  Talker talker_;
};

TEST_F(AskHub, AStopEndsItWhileWordsCome) {
  std::stop_source stop;
  EXPECT_EQ(ask(
                std::chrono::minutes(1), [&] { stop.request_stop(); }, stop.get_token()),
            std::pair(1, Code::cancelled));
}

TEST_F(AskHub, TheDeadlineEndsItWhileWordsCome) {
  constexpr Duration kAtMost = std::chrono::milliseconds(400);
  const auto outlast = [&] {
    const Time until = system_clock().now() + kAtMost;
    came_true([until] { return system_clock().now() > until; });
  };
  const auto [words, ended] = ask(kAtMost, outlast);
  EXPECT_LE(words, 1) << "more had come by then";
  EXPECT_EQ(ended, Code::timed_out);
}

TEST_F(AskHub, AModelThatNobodyPublishesIsAnsweredWithThoseThatAreThere) {
  const TemporaryFolder folder;
  const auto directory = open_directory(folder.path());
  ASSERT_TRUE(directory) << directory.error().message();
  const auto claim = (*directory)->claim("resnet");
  ASSERT_TRUE(claim) << claim.error().message();
  ASSERT_TRUE((*claim)->advertise({.model = "resnet", .pid = ::getpid(), .control = talker_.address()}));
  const SecurityOptions security;
  EXPECT_TRUE(is_refused(ask_hub({.model = "resent",
                                  .at = "",
                                  .directory = folder.path(),
                                  .security = security,
                                  .request = protocol::StatRequest{},
                                  .is_answer = [](const protocol::Message&) { return true; }},
                                 std::chrono::seconds(5), {}),
                         Code::not_found, "here are: resnet"));
}

}  // namespace
}  // namespace freshet
