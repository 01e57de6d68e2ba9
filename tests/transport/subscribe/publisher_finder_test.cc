// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/publisher_finder.h"
#include "tests/support/refused.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace freshet {
namespace {

/// A watch whose knowledge the test writes.
class FakeWatch final : public Directory::Watch {
 public:
  struct Known {
    Result<Directory::Entry> entry = fail(Code::not_found, "nobody");
    std::vector<Directory::Server> servers = {};
    bool news = false;
    int asked_again = 0;
  };
  explicit FakeWatch(Known& known) : known_(known) {}
  int descriptor() const override { return -1; }
  bool take() override { return std::exchange(known_.news, false); }
  void look_again() override { ++known_.asked_again; }
  Result<Directory::Entry> entry() override { return known_.entry; }
  Result<CurrentVersion> current() override { return CurrentVersion{}; }
  Result<std::vector<Directory::Server>> servers() override { return known_.servers; }

 private:
  Known& known_;
};

class PublisherFinderTest : public ::testing::Test {
 protected:
  static Directory::Entry entry(std::uint64_t incarnation, const std::string& control) {
    return {.model = "demo", .pid = 7, .incarnation = incarnation, .control = control, .host = "there"};
  }
  FakeWatch::Known known_;
  PublisherFinder finder_{std::make_unique<FakeWatch>(known_), "demo", "here"};
  Time now_ = Time(std::chrono::hours(1));
};

TEST_F(PublisherFinderTest, NewsOfSomebodyElseIsAReasonToMove) {
  known_.news = true;
  EXPECT_FALSE(finder_.take_news()) << "nobody was found yet";
  known_.entry = entry(1, "tcp://10.0.0.1:7070");
  EXPECT_EQ(*finder_.look(now_), "tcp://10.0.0.1:7070");
  known_.news = true;
  EXPECT_FALSE(finder_.take_news()) << "the same";
  known_.entry = entry(2, "tcp://10.0.0.1:7070");
  EXPECT_FALSE(finder_.take_news()) << "no news";
  known_.news = true;
  EXPECT_TRUE(finder_.take_news());
  EXPECT_TRUE(finder_.due(now_));
  known_.entry = fail(Code::not_found, "nobody");
  known_.news = true;
  EXPECT_FALSE(finder_.take_news()) << "one whose entry is gone may still answer";
}

TEST_F(PublisherFinderTest, AGhostIsAskedAboutAgainAfterPausesThatGrow) {
  known_.entry = entry(1, "tcp://10.0.0.1:7070");
  ASSERT_TRUE(finder_.look(now_));
  EXPECT_EQ(finder_.looks_in_vain(), 0);
  Duration before{};
  for (int i = 1; i <= 8; ++i) {
    EXPECT_FALSE(finder_.due(now_));
    const Time from = now_;
    while (!finder_.due(now_)) now_ += std::chrono::milliseconds(100);
    const Duration pause = now_ - from;
    EXPECT_GE(pause, before);
    EXPECT_LE(pause, std::chrono::seconds(33));
    before = pause;
    ASSERT_TRUE(finder_.look(now_));
    EXPECT_EQ(finder_.looks_in_vain(), i);
    EXPECT_EQ(known_.asked_again, i);
  }
  EXPECT_GE(before, std::chrono::seconds(30));
  finder_.on_connected();
  ASSERT_TRUE(finder_.look(now_));
  EXPECT_LE(finder_.looks_in_vain(), 1);
  known_.entry = entry(2, "tcp://10.0.0.1:7070");
  ASSERT_TRUE(finder_.look(now_));
  EXPECT_EQ(finder_.looks_in_vain(), 0);
}

TEST_F(PublisherFinderTest, ADirectoryThatHasNotAnsweredYetIsNoTrouble) {
  known_.entry = fail(Code::unavailable, "not reached yet");
  EXPECT_FALSE(finder_.look(now_));
  EXPECT_FALSE(finder_.worth_telling(now_));
  now_ += std::chrono::seconds(2);
  EXPECT_FALSE(finder_.look(now_));
  EXPECT_TRUE(finder_.worth_telling(now_));
  known_.entry = fail(Code::not_found, "nobody");
  EXPECT_FALSE(finder_.look(now_));
  EXPECT_FALSE(finder_.worth_telling(now_));
}

TEST_F(PublisherFinderTest, AddressesOfAnotherHostAloneAreOfNoUse) {
  known_.entry = entry(1, "ipc:///tmp/control");
  EXPECT_TRUE(is_refused(finder_.look(now_), Code::failed_precondition, "ipc:///tmp/control"));
  known_.entry->also = {"ipc:///tmp/other", "tcp://10.0.0.1:7070"};
  EXPECT_EQ(*finder_.look(now_), "tcp://10.0.0.1:7070");
  known_.entry->host = "here";
  EXPECT_EQ(*finder_.look(now_), "ipc:///tmp/control");
  known_.entry->host = "";
  EXPECT_EQ(*finder_.look(now_), "ipc:///tmp/control");
}

class RelayFinderTest : public PublisherFinderTest {
 protected:
  std::string look() {
    now_ += std::chrono::seconds(40);
    const auto address = finder_.look(now_);
    return address ? *address : "none: " + address.error().message();
  }
  PublisherFinder finder_{std::make_unique<FakeWatch>(known_), "demo", "here", 17};
};

TEST_F(RelayFinderTest, RelaysComeBeforeThePublisherAndWhoIsSilentGivesWay) {
  known_.entry = entry(1, "tcp://trainer:7070");
  known_.servers = {{.address = "tcp://a:1", .number = 4},
                    {.address = "ipc:///b", .number = 4},
                    {.address = "tcp://c:1", .number = 3}};
  const std::string first = look();
  const std::string second = look();
  EXPECT_EQ((std::set<std::string>{first, second}), (std::set<std::string>{"tcp://a:1", "tcp://c:1"}));
  EXPECT_TRUE(finder_.knows_others());
  EXPECT_EQ(look(), "tcp://trainer:7070");
  EXPECT_EQ(look(), first) << "and again from the beginning";
  finder_.on_connected();
  EXPECT_EQ(look(), first) << "it answers";
  EXPECT_EQ(look(), second) << "it did not";
}

TEST_F(RelayFinderTest, SubscribersSpreadOverTheRelays) {
  known_.entry = entry(1, "tcp://trainer:7070");
  known_.servers = {{.address = "tcp://a:1"}, {.address = "tcp://b:1"}, {.address = "tcp://c:1"}};
  std::map<std::string, int> first;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    PublisherFinder finder(std::make_unique<FakeWatch>(known_), "demo", "here", seed);
    ++first[*finder.look(now_)];
  }
  for (const auto& server : known_.servers) EXPECT_GT(first[server.address], 5) << server.address;
}

TEST_F(RelayFinderTest, ARelayIsFoundThoughNobodyPublishes) {
  known_.entry = fail(Code::not_found, "nobody");
  EXPECT_EQ(look(), "none: nobody");
  EXPECT_FALSE(finder_.knows_others());
  known_.servers = {{.address = "tcp://a:1"}};
  EXPECT_EQ(look(), "tcp://a:1");
  EXPECT_FALSE(finder_.knows_others());
}

TEST_F(RelayFinderTest, ARelayThatComesLaterIsKnown) {
  known_.entry = entry(1, "tcp://trainer:7070");
  EXPECT_EQ(look(), "tcp://trainer:7070");
  EXPECT_FALSE(finder_.knows_others());
  known_.servers = {{.address = "tcp://a:1"}};
  known_.news = true;
  EXPECT_FALSE(finder_.take_news()) << "no reason to leave who answers";
  EXPECT_TRUE(finder_.knows_others());
}

TEST_F(PublisherFinderTest, WhoFollowsThePublisherAloneLooksForNoRelays) {
  known_.entry = entry(1, "tcp://trainer:7070");
  known_.servers = {{.address = "tcp://a:1"}};
  EXPECT_EQ(*finder_.look(now_), "tcp://trainer:7070");
  EXPECT_FALSE(finder_.knows_others());
}

}  // namespace
}  // namespace freshet
