// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/nccl/rounds.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

namespace freshet::channel::nccl {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

Time after(std::int64_t ms) { return Time(milliseconds(ms)); }
constexpr std::uint64_t kRoundBytes = 16 << 20;  // 1 s at the floor: a step has 2 s.

/// Rounds in which `members` wait since 0; they were formed at 20 ms, and opened.
Rounds opened(const std::vector<Rounds::Member>& members, const RoundLimits& limits = {}) {
  Rounds rounds(limits);
  for (const auto member : members) rounds.on_waits(member, true, after(0));
  EXPECT_THAT(rounds.step(after(20)).formed, ElementsAre(Pair(1, members)));
  rounds.on_open(1, after(20));
  return rounds;
}

TEST(NcclRounds, ARoundIsOfThoseThatWaitAtTheSameTime) {
  Rounds rounds({});
  rounds.on_waits(1, true, after(0));
  rounds.on_waits(2, true, after(0));
  rounds.on_waits(2, false, after(1));
  rounds.on_waits(3, true, after(10));
  EXPECT_THAT(rounds.step(after(19)).formed, IsEmpty());
  EXPECT_EQ(rounds.due(), after(20));
  EXPECT_THAT(rounds.step(after(20)).formed, ElementsAre(Pair(1, ElementsAre(1, 3))));
  EXPECT_FALSE(rounds.may_carry(1, after(20)));
  rounds.on_open(1, after(30));
  EXPECT_TRUE(rounds.may_carry(1, after(30)));
  rounds.on_waits(2, true, after(40));
  EXPECT_THAT(rounds.step(after(60)).formed, ElementsAre(Pair(2, ElementsAre(2)))) << "who comes late has a round too";
}

TEST(NcclRounds, LimitsAreMetExactly) {
  Rounds rounds({.members_max = 3, .rounds_max = 2});
  for (Rounds::Member member = 1; member <= 7; ++member) rounds.on_waits(member, true, after(0));
  EXPECT_THAT(rounds.step(after(20)).formed, ElementsAre(Pair(1, ElementsAre(1, 2, 3)), Pair(2, ElementsAre(4, 5, 6))));
  for (Rounds::Member member = 1; member <= 6; ++member) EXPECT_FALSE(rounds.goes_by_messages(member, after(20)));
  EXPECT_TRUE(rounds.goes_by_messages(7, after(20)));
  rounds.on_gone(1);
  EXPECT_THAT(rounds.step(after(21)).ended, ElementsAre(1));
  EXPECT_TRUE(rounds.goes_by_messages(7, after(21))) << "its thread is not at its end";
  rounds.on_closed(1);
  EXPECT_FALSE(rounds.goes_by_messages(7, after(21)));
  EXPECT_THAT(rounds.step(after(21)).formed, ElementsAre(Pair(3, ElementsAre(2, 3, 7))));
}

TEST(NcclRounds, WhoDoesNotJoinBreaksTheRoundInTime) {
  Rounds rounds({});
  rounds.on_waits(1, true, after(0));
  ASSERT_THAT(rounds.step(after(20)).ended, IsEmpty());
  EXPECT_EQ(rounds.due(), after(2020));
  EXPECT_THAT(rounds.step(after(2019)).ended, IsEmpty());
  EXPECT_THAT(rounds.step(after(2020)).ended, ElementsAre(1));
  EXPECT_TRUE(rounds.goes_by_messages(1, after(3019)));
  EXPECT_FALSE(rounds.goes_by_messages(1, after(3020))) << "a second later there may be another";
}

TEST(NcclRounds, ATransferHasADeadlineAndTheLateAlonePause) {
  Rounds rounds = opened({1, 2});
  rounds.on_begun(1, kRoundBytes, after(20));
  rounds.on_sent(1, 1, after(30));
  ASSERT_TRUE(rounds.on_took(1, 1, 1, after(30)));
  EXPECT_THAT(rounds.step(after(2019)).ended, IsEmpty());
  EXPECT_THAT(rounds.step(after(2020)).ended, ElementsAre(1));
  EXPECT_FALSE(rounds.goes_by_messages(1, after(2020)));
  EXPECT_TRUE(rounds.goes_by_messages(2, after(2020)));
}

TEST(NcclRounds, EachFinishedTransferGivesTheNextAsLong) {
  Rounds rounds = opened({1});
  rounds.on_begun(1, kRoundBytes, after(20));
  rounds.on_begun(1, kRoundBytes, after(1000));
  EXPECT_FALSE(rounds.may_carry(1, after(1000))) << "two are in flight";
  EXPECT_EQ(rounds.due(), after(2020));
  rounds.on_sent(1, 1, after(1500));
  EXPECT_EQ(rounds.due(), after(2020)) << "the member has not taken it";
  ASSERT_TRUE(rounds.on_took(1, 1, 1, after(1600)));
  EXPECT_EQ(rounds.due(), after(3600));
  EXPECT_TRUE(rounds.may_carry(1, after(1600)));
}

TEST(NcclRounds, WhoAsksForLessDoesNotHoldTheOthersUp) {
  Rounds rounds = opened({1, 2});
  rounds.on_begun(1, kRoundBytes, after(20));
  rounds.on_waits(2, false, after(20));
  rounds.on_sent(1, 1, after(30));
  for (const Rounds::Member member : {1, 2}) ASSERT_TRUE(rounds.on_took(member, 1, 1, after(30)));
  rounds.on_waits(1, false, after(30));
  rounds.on_waits(1, true, after(31));
  EXPECT_FALSE(rounds.may_carry(1, after(31))) << "the other one may ask in a moment";
  EXPECT_EQ(rounds.due(), after(51));
  EXPECT_TRUE(rounds.may_carry(1, after(51)));
  rounds.on_begun(1, kRoundBytes, after(51));
  rounds.on_waits(1, false, after(51));
  rounds.on_waits(1, true, after(52));
  EXPECT_TRUE(rounds.may_carry(1, after(52))) << "nobody waits twice for who is behind";
  rounds.on_waits(2, true, after(53));
  rounds.on_waits(2, false, after(54));
  rounds.on_waits(1, false, after(54));
  rounds.on_waits(1, true, after(55));
  EXPECT_FALSE(rounds.may_carry(1, after(56))) << "but for who asked again";
}

TEST(NcclRounds, WhoWasNotHeardLatelyIsLeftOutOfTheNext) {
  Rounds rounds = opened({1, 2});
  for (const Rounds::Member member : {1, 2}) rounds.on_waits(member, false, after(21));
  rounds.on_waits(1, true, after(5000));
  EXPECT_FALSE(rounds.may_carry(1, after(5020)));
  EXPECT_EQ(rounds.due(), after(5020));
  const Rounds::Steps steps = rounds.step(after(5020));
  EXPECT_THAT(steps.ended, ElementsAre(1));
  EXPECT_THAT(steps.formed, ElementsAre(Pair(2, ElementsAre(1))));
  EXPECT_FALSE(rounds.goes_by_messages(2, after(5020))) << "it did nothing wrong";
}

TEST(NcclRounds, ARoundThatNobodyUsesEnds) {
  Rounds rounds = opened({1});
  rounds.on_waits(1, false, after(20));
  EXPECT_THAT(rounds.step(after(60'019)).ended, IsEmpty());
  EXPECT_THAT(rounds.step(after(60'020)).ended, ElementsAre(1));
  EXPECT_EQ(rounds.due(), Time::max());
}

/// Servers start one after another.
TEST(NcclRounds, RoundsSideBySideBecomeOne) {
  Rounds rounds = opened({1});
  using Members = std::vector<Rounds::Member>;
  std::map<Rounds::Number, std::uint64_t> carried;
  const auto want = [&](const Members& members, bool waits, std::int64_t now) {
    for (const auto member : members) rounds.on_waits(member, waits, after(now));
  };
  const auto carry = [&](Rounds::Number round, const Members& members, std::int64_t now) {
    EXPECT_TRUE(rounds.may_carry(round, after(now)));
    rounds.on_begun(round, kRoundBytes, after(now));
    rounds.on_sent(round, ++carried[round], after(now));
    for (const auto member : members) EXPECT_TRUE(rounds.on_took(member, round, carried[round], after(now)));
    want(members, false, now);
  };
  const auto come_late = [&](Rounds::Number round, Rounds::Member member, std::int64_t now) {
    want({member}, true, now - 20);
    EXPECT_THAT(rounds.step(after(now)).formed, ElementsAre(Pair(round, ElementsAre(member))));
    rounds.on_open(round, after(now));
    carry(round, {member}, now);
  };
  carry(1, {1}, 20);
  come_late(2, 2, 120);
  want({1}, true, 1119);
  carry(1, {1}, 1119);  // Once a second a round waits for others, and round 2 has.
  want({1}, true, 2000);
  EXPECT_FALSE(rounds.may_carry(1, after(2000)));
  want({2}, true, 2015);
  EXPECT_THAT(rounds.step(after(2019)).ended, IsEmpty());
  EXPECT_EQ(rounds.due(), after(2020));
  const Rounds::Steps met = rounds.step(after(2020));
  EXPECT_THAT(met.ended, ElementsAre(1, 2));
  EXPECT_THAT(met.formed, ElementsAre(Pair(3, ElementsAre(1, 2))));
  EXPECT_THAT(met.late, IsEmpty());
  rounds.on_open(3, after(2030));
  carry(3, {1, 2}, 2030);
  come_late(4, 3, 2120);
  want({1, 2, 3}, true, 62'019);
  carry(3, {1, 2}, 62'019);  // Once a minute they meet.
  carry(4, {3}, 62'019);
  want({1, 2}, true, 62'070);
  EXPECT_FALSE(rounds.may_carry(3, after(62'070)));
  carry(3, {1, 2}, 62'090);  // In vain, so the others are not waited for in the next second.
  rounds.on_begun(3, kRoundBytes, after(63'080));
  rounds.on_begun(3, kRoundBytes, after(63'095));  // Another is in flight.
  rounds.on_sent(3, carried[3] += 2, after(63'095));
  for (const Rounds::Member member : {1, 2}) EXPECT_TRUE(rounds.on_took(member, 3, carried[3], after(63'095)));
  want({1, 3}, true, 63'100);
  EXPECT_THAT(rounds.step(after(63'120)).ended, IsEmpty()) << "member 2 would be left out";
  want({2}, true, 63'120);
  EXPECT_THAT(rounds.step(after(63'120)).formed, ElementsAre(Pair(5, ElementsAre(1, 2, 3))));
}

TEST(NcclRounds, RoundsThatDoNotFitIntoOneStay) {
  Rounds rounds({.members_max = 3});
  for (Rounds::Member member = 1; member <= 5; ++member) rounds.on_waits(member, true, after(0));
  EXPECT_EQ(rounds.step(after(20)).formed.size(), 2U);
  for (const Rounds::Number round : {1, 2}) rounds.on_open(round, after(20));
  for (const Rounds::Number round : {1, 2}) EXPECT_TRUE(rounds.may_carry(round, after(20)));
  EXPECT_THAT(rounds.step(after(100)).ended, IsEmpty());
}

TEST(NcclRounds, APauseDoublesUntilATransferWorks) {
  Rounds rounds({});
  std::int64_t now = 0;
  for (const std::int64_t pause : {1000, 2000, 4000, 1000}) {
    rounds.on_waits(1, true, after(now));
    const auto formed = rounds.step(after(now + 20)).formed;
    ASSERT_EQ(formed.size(), 1u);
    const Rounds::Number number = formed.begin()->first;
    if (number == 4) {
      rounds.on_open(number, after(now + 20));
      rounds.on_begun(number, kRoundBytes, after(now + 20));
      rounds.on_sent(number, 1, after(now + 20));
      ASSERT_TRUE(rounds.on_took(1, number, 1, after(now + 20)));
    }
    rounds.on_left(1, number, after(now + 20));
    EXPECT_THAT(rounds.step(after(now + 20)).ended, ElementsAre(number));
    EXPECT_TRUE(rounds.goes_by_messages(1, after(now + 19 + pause)));
    now += 20 + pause;
    EXPECT_FALSE(rounds.goes_by_messages(1, after(now)));
  }
}

TEST(NcclRounds, LiesAboutTransfersAreErrors) {
  Rounds rounds = opened({1, 2});
  EXPECT_FALSE(rounds.on_took(1, 1, 1, after(20))) << "none was begun";
  rounds.on_begun(1, kRoundBytes, after(20));
  ASSERT_TRUE(rounds.on_took(1, 1, 1, after(21)));
  EXPECT_FALSE(rounds.on_took(1, 1, 0, after(21))) << "it was taken already";
  EXPECT_FALSE(rounds.on_took(3, 1, 1, after(21))) << "it is no member";
  EXPECT_TRUE(rounds.on_took(1, 7, 1, after(21))) << "a round that has ended is no news";
}

/// Members that ask, stop, die and come late, and messages that are lost, in an order that a seed chooses. The
/// simulation is the shell: it carries out what Rounds says, and looks whether each wish is met in time.
class RoundsSimulation {
 public:
  explicit RoundsSimulation(std::uint64_t seed) : random_(seed) {}

  void run() {
    for (int turn = 0; turn < 4000; ++turn) {
      now_ += milliseconds(1 + pick(turn % 50 == 0 ? 1500 : 8));
      happen();
      settle();
      if (testing::Test::HasFailure()) return;
    }
  }
  int transfers = 0;
  int broken = 0;

 private:
  struct Client {
    bool stopped = false;
    bool waits = false;
    Time since{};
    std::uint64_t round = 0;  ///< That it was told to join.
    std::uint64_t took = 0;
  };
  struct Running {
    std::set<std::uint64_t> members;
    bool open = false;
    std::uint64_t begun = 0;
  };
  /// Longer than any wish may take: that of a member whose rounds end by others' faults, a few times.
  static constexpr Duration kWishMax = milliseconds(10'000);

  std::uint64_t pick(std::uint64_t below) { return random_() % below; }

  void happen() {
    const std::uint64_t what = pick(100);
    if (clients_.size() < 6 && what < 10) clients_[++last_] = {};
    if (clients_.empty()) return;
    auto at = clients_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(pick(clients_.size())));
    auto& [number, client] = *at;
    if (what < 50 && !client.stopped && !client.waits) wish(number, client);
    if (what >= 50 && what < 52) client.stopped = true;
    if (what >= 52 && what < 56) client.stopped = false;
    if (what >= 56 && what < 57) {
      rounds_.on_gone(number);
      for (auto& [id, running] : running_) running.members.erase(number);
      clients_.erase(at);
    }
    if (what >= 57 && what < 58 && client.round != 0) rounds_.on_left(number, client.round, now_);
    if (what >= 60 && what < 80 && !closing_.empty()) {
      rounds_.on_closed(*closing_.begin());
      closing_.erase(closing_.begin());
    }
    if (what >= 58 && what < 59 && !running_.empty()) rounds_.on_failed(running_.begin()->first, now_);
  }

  void wish(std::uint64_t number, Client& client) {
    client.waits = true;
    client.since = now_;
    rounds_.on_waits(number, true, now_);
  }
  void meet(std::uint64_t number, Client& client) {
    client.waits = false;
    rounds_.on_waits(number, false, now_);
  }

  void settle() {
    for (auto& [id, running] : running_) answer(id, running);
    const Rounds::Steps steps = rounds_.step(now_);
    for (const auto id : steps.ended) {
      ++broken;
      ASSERT_EQ(running_.erase(id), 1u);
      closing_.insert(id);
      for (auto& [number, client] : clients_) {
        if (client.round == id) client.round = 0;
      }
    }
    for (const auto& [id, members] : steps.formed) form(id, members);
    ASSERT_LE(running_.size() + closing_.size(), kSimulated.rounds_max);
    for (auto& [number, client] : clients_) {
      if (client.waits && rounds_.goes_by_messages(number, now_)) meet(number, client);
      ASSERT_TRUE(client.stopped || !client.waits || now_ - client.since < kWishMax) << "a wish of " << number;
    }
    for (auto& [id, running] : running_) {
      while (!testing::Test::HasFailure() && rounds_.may_carry(id, now_)) carry(id, running);
    }
    ASSERT_GT(rounds_.due(), now_) << "a loop that waits for nothing";
  }

  /// What members and the server's own rank say of a round; a part of it is lost.
  void answer(std::uint64_t id, Running& running) {
    bool all = true;
    for (const auto number : running.members) all = all && !clients_.at(number).stopped;
    if (!all || running.members.empty()) return;
    if (!running.open) {
      running.open = pick(4) != 0;
      if (running.open) rounds_.on_open(id, now_);
      return;
    }
    rounds_.on_sent(id, running.begun, now_);
    for (const auto number : running.members) {
      if (pick(200) == 0) clients_.at(number).stopped = true;
      if (clients_.at(number).stopped) continue;
      const Status took = rounds_.on_took(number, id, running.begun, now_);
      ASSERT_TRUE(took) << took.error().message();
    }
  }

  void form(std::uint64_t id, const std::vector<std::uint64_t>& members) {
    ASSERT_FALSE(members.empty());
    ASSERT_LE(members.size(), kSimulated.members_max);
    for (const auto number : members) {
      Client& client = clients_.at(number);
      ASSERT_TRUE(client.waits) << "one that waits for nothing is in round " << id;
      ASSERT_EQ(client.round, 0u) << "one is in two rounds";
      client.round = id;
      running_[id].members.insert(number);
    }
  }

  void carry(std::uint64_t id, Running& running) {
    ASSERT_TRUE(running.open);
    ++transfers;
    ++running.begun;
    rounds_.on_begun(id, kRoundBytes, now_);
    for (const auto number : running.members) {
      if (clients_.at(number).waits) meet(number, clients_.at(number));
    }
  }

  static constexpr RoundLimits kSimulated{.members_max = 3, .rounds_max = 2, .meet_again = milliseconds(500)};
  std::mt19937_64 random_;
  Rounds rounds_{kSimulated};
  Time now_{};
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Client> clients_;
  std::map<std::uint64_t, Running> running_;
  std::set<std::uint64_t> closing_;
};

TEST(NcclRounds, EachWishIsMetWhateverHappens) {
  int transfers = 0;
  int broken = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RoundsSimulation simulation(seed);
    simulation.run();
    if (HasFailure()) return;
    transfers += simulation.transfers;
    broken += simulation.broken;
  }
  EXPECT_GT(transfers, 10'000);
  EXPECT_GT(broken, 1'000);
}

}  // namespace
}  // namespace freshet::channel::nccl
