/// One provider that answers for all, with the providers in this process: the same answers as asking everybody, and
/// everything that the client wrote or saw in them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "repo/cluster/follower.h"
#include "tests/cluster/cluster_world.h"

namespace freshet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ReplicaOfAll : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < world_.size(); ++i) follow(i);
    ASSERT_TRUE(eventually(
        [&] { return std::ranges::all_of(followers_, [](const auto& one) { return one->replica().is_complete(); }); }));
  }
  void follow(std::size_t i, cluster::FollowTimes times = {}) {
    const std::string id = world_.placement().providers()[i].id;
    if (i < followers_.size()) followers_[i].reset();
    followers_.resize(std::max(followers_.size(), i + 1));
    followers_[i] = cluster::ProviderFollower::start(world_.at(id), id, world_.connect(), {.times = times}).value();
  }
  static bool eventually(const std::function<bool()>& condition) {
    const Time deadline = system_clock().now() + std::chrono::seconds(60);
    while (!condition()) {
      if (system_clock().now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  VersionName put_one(Repository& repository, std::vector<std::uint64_t> sizes, double quality,
                      const TestVersion* ancestor = nullptr, const std::string& model = "net") {
    TestVersion version = make_version(model, test_id(next_id_++), test_architecture(sizes), nullptr, {}, random_);
    if (ancestor != nullptr) version.manifest.ancestor = ancestor->manifest.id;
    if (ancestor != nullptr) version.manifest.ancestor_name = ancestor->manifest.name;
    const auto name = put(repository, version, {.quality = quality, .ancestor_may_be_retired = true});
    EXPECT_TRUE(name) << name.error().message();
    version.manifest.name = name.value_or(VersionName{});
    put_.push_back(version);
    return version.manifest.name;
  }
  MatchQuery query(std::vector<std::uint64_t> sizes, std::uint32_t top = 1) {
    MatchQuery asked{.graph = MatchGraph::of(*test_architecture(sizes)), .top = top, .one_for_all = true};
    return asked;
  }
  /// Asks until one provider answers for all; others that could not are passed over for a while.
  MatchAnswer by_one(ClusterRepository& repository, const MatchQuery& asked) {
    MatchAnswer answer;
    EXPECT_TRUE(eventually([&] {
      const auto got = repository.match(asked);
      EXPECT_TRUE(got) << got.error().message();
      if (got) answer = *got;
      return !got || !got->answered_by.empty();
    }));
    return answer;
  }

  std::mt19937_64 random_{20261122};
  std::uint64_t next_id_ = 1;
  std::vector<TestVersion> put_;
  ClusterWorld world_{3};
  std::vector<std::unique_ptr<cluster::ProviderFollower>> followers_;
  std::unique_ptr<ClusterRepository> repository_ = world_.open();
};

TEST_F(ReplicaOfAll, AnswersAsAllTogetherDo) {
  for (std::uint64_t i = 0; i < 60; ++i) {
    const TestVersion* const ancestor = put_.empty() || i % 5 == 0 ? nullptr : &put_[random_() % put_.size()];
    const TestVersion copy = ancestor == nullptr ? TestVersion() : *ancestor;
    put_one(*repository_, {1 + random_() % 2, 1 + random_() % 3, 1 + random_() % 3, 7},
            0.1 * static_cast<double>(i % 9), ancestor == nullptr ? nullptr : &copy, "m" + std::to_string(i % 3));
    if (i % 7 != 6) continue;
    const VersionName gone = put_[random_() % put_.size()].manifest.name;
    (void)repository_->retire(gone, {});  // It may be gone already.
  }
  int excluded = 0;
  for (int i = 0; i < 40; ++i) {
    MatchQuery asked = query({1 + random_() % 2, 1 + random_() % 3, 1 + random_() % 3, 7}, 1 + random_() % 50);
    asked.objective = static_cast<Objective>(random_() % 3);
    if (i % 4 == 0) asked.least_quality = 0.4;
    if (i % 2 == 0) asked.exclude_lineage = put_[random_() % put_.size()].manifest.name;
    if (asked.exclude_lineage && !repository_->get(*asked.exclude_lineage)) asked.exclude_lineage.reset();
    excluded += asked.exclude_lineage ? 1 : 0;
    const MatchAnswer one = by_one(*repository_, asked);
    asked.one_for_all = false;
    const auto all = repository_->match(asked);
    ASSERT_TRUE(all) << all.error().message();
    EXPECT_EQ(one.top, all->top);
    EXPECT_EQ(one.as_of, all->as_of);
    EXPECT_EQ(one.providers, all->providers);
  }
  EXPECT_GT(excluded, 5);
}

TEST_F(ReplicaOfAll, HearsWhatIsSaidOfAVersionLater) {
  const VersionName first = put_one(*repository_, {1, 2, 3}, 0.5);
  put_one(*repository_, {1, 2, 3}, 0.6);
  ASSERT_NE(by_one(*repository_, query({1, 2, 3})).top.at(0).version, first);
  ASSERT_TRUE(repository_->annotate(first, {.sets_quality = true, .quality = 0.9, .tags = {{"kind", "best"}}}));
  EXPECT_EQ(by_one(*repository_, query({1, 2, 3})).top.at(0).version, first);
  MatchQuery tagged = query({1, 2, 3}, 5);
  tagged.tags = {{"kind", "best"}};
  EXPECT_THAT(by_one(*repository_, tagged).top, SizeIs(1));
  ASSERT_TRUE(repository_->annotate(first, {.tags = {{"kind", std::nullopt}}})) << "of tags alone";
  EXPECT_THAT(by_one(*repository_, tagged).top, SizeIs(0));
}

TEST_F(ReplicaOfAll, HasWhatItsClientWroteAndSaw) {
  // Nobody looks for news by himself, so what is there is there because it was needed.
  for (std::size_t i = 0; i < 3; ++i) {
    follow(i, {.idle = std::chrono::hours(1), .fresh = std::chrono::hours(2)});
  }
  ASSERT_TRUE(eventually(
      [&] { return std::ranges::all_of(followers_, [](const auto& one) { return one->replica().is_complete(); }); }));
  int by_one_count = 0;
  std::optional<VersionName> best;
  for (int i = 0; i < 30; ++i) {
    const VersionName name = put_one(*repository_, {1, 2, 3}, 0.01 * i);
    const auto answer = repository_->match(query({1, 2, 3}));
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_EQ(answer->top.at(0).version, name);
    by_one_count += answer->answered_by.empty() ? 0 : 1;
    best = name;
  }
  EXPECT_GT(by_one_count, 0) << "it was not put to the test";
  // What another client saw, it sees again, wherever it asks.
  const auto other = world_.open();
  MatchQuery everybody = query({1, 2, 3});
  everybody.one_for_all = false;
  ASSERT_EQ(other->match(everybody)->top.at(0).version, *best);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(other->match(query({1, 2, 3}))->top.at(0).version, *best);
  // What is retired is in no answer any more.
  for (int i = 0; i < 10; ++i) {
    const auto before = repository_->match(query({1, 2, 3}));
    ASSERT_TRUE(repository_->retire(before->top.at(0).version, {}));
    EXPECT_NE(repository_->match(query({1, 2, 3}))->top.at(0).version, before->top.at(0).version);
  }
}

TEST_F(ReplicaOfAll, OneThatLagsSaysSoAndAllAreAsked) {
  put_one(*repository_, {1, 2, 3}, 0.5);
  ASSERT_THAT(by_one(*repository_, query({1, 2, 3})).top, SizeIs(1));
  ReplicaQuery asked{.match = query({1, 2, 3}), .wait = std::chrono::milliseconds(1)};
  asked.needs.push_back({.provider = "p1", .position = world_.at("p1").heard()->position});
  ASSERT_TRUE(eventually([&] { return world_.at("p0").match_for_all(asked).has_value(); }));
  asked.needs[0].position.change += 1;
  EXPECT_EQ(world_.at("p0").match_for_all(asked).error().code(), Code::failed_precondition);
  asked.needs[0] = {.provider = "p1", .position = {.life = 77, .change = 1}};
  EXPECT_THAT(world_.at("p0").match_for_all(asked).error().message(), HasSubstr("p1"));
  asked.needs[0] = {.provider = "nobody", .position = {.life = 77, .change = 1}};
  EXPECT_EQ(world_.at("p0").match_for_all(asked).error().code(), Code::failed_precondition);
  asked.needs.assign(kProvidersMax + 1, asked.needs[0]);
  EXPECT_EQ(world_.at("p0").match_for_all(asked).error().code(), Code::invalid_argument);
}

TEST_F(ReplicaOfAll, WhoIsNotFollowedIsNamedAndAllAreAsked) {
  for (int i = 0; i < 12; ++i) put_one(*repository_, {1, 2, 3}, 0.1 * i);
  world_.cut("p1");
  ReplicaQuery asked{.match = query({1, 2, 3}, 20)};
  for (const std::string id : {"p0", "p2"}) {
    ASSERT_TRUE(eventually([&] { return world_.at(id).match_for_all(asked)->match.without.size() == 1; }));
    EXPECT_THAT(world_.at(id).match_for_all(asked)->match.without[0], HasSubstr("provider p1"));
  }
  // Each client has one of its own that it asks first.
  for (int i = 0; i < 8; ++i) {
    const auto answer = world_.open()->match(query({1, 2, 3}, 20));
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_THAT(answer->without, SizeIs(1));
    EXPECT_EQ(answer->answered_by, "");
    for (const MatchRow& row : answer->top) EXPECT_NE(world_.placement().home(row.id), 1u);
  }
  world_.mend("p1");
  EXPECT_THAT(by_one(*repository_, query({1, 2, 3}, 20)).top, SizeIs(12));
}

TEST_F(ReplicaOfAll, WhatIsRetiredBeforeItIsPinnedIsNotTheAnswer) {
  put_one(*repository_, {1, 2, 3}, 0.1);
  for (int i = 0; i < 4; ++i) put_one(*repository_, {1, 2, 3}, 0.2 + 0.1 * i);
  ASSERT_THAT(by_one(*repository_, query({1, 2, 3})).top, SizeIs(1));
  for (std::size_t i = 0; i < 3; ++i) {
    follow(i, {.idle = std::chrono::hours(1), .fresh = std::chrono::hours(2)});
  }
  ASSERT_TRUE(eventually(
      [&] { return std::ranges::all_of(followers_, [](const auto& one) { return one->replica().is_complete(); }); }));
  // Somebody else retires what the replicas still have.
  const auto other = world_.open();
  for (std::size_t i = 4; i >= 2; --i) ASSERT_TRUE(other->retire(put_[i].manifest.name, {}));
  MatchQuery asked = query({1, 2, 3});
  asked.pin_by = "me";
  const auto answer = repository_->match(asked);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->top.at(0).version, put_[1].manifest.name);
  EXPECT_THAT(repository_->pins(put_[1].manifest.name).value(), ElementsAre("me"));
}

TEST_F(ReplicaOfAll, AProviderThatDiesBeforeThePinIsGoneAround) {
  for (int i = 0; i < 20; ++i) put_one(*repository_, {1, 2, 3}, 0.01 * i);
  const MatchAnswer before = by_one(*repository_, query({1, 2, 3}));
  for (std::size_t i = 0; i < 3; ++i) {
    follow(i, {.idle = std::chrono::hours(1), .fresh = std::chrono::hours(2)});
  }
  ASSERT_TRUE(eventually(
      [&] { return std::ranges::all_of(followers_, [](const auto& one) { return one->replica().is_complete(); }); }));
  const std::size_t home = world_.placement().home(before.top.at(0).id);
  world_.cut(world_.placement().providers()[home].id);
  const auto client = world_.open();
  MatchQuery asked = query({1, 2, 3});
  asked.pin_by = "me";
  const auto answer = client->match(asked);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_NE(world_.placement().home(answer->top.at(0).id), home);
  EXPECT_THAT(answer->without, SizeIs(1));
  EXPECT_THAT(client->pins(answer->top[0].version).value(), ElementsAre("me"));
}

TEST_F(ReplicaOfAll, NobodyWhoFollowsMeansAllAreAsked) {
  followers_.clear();
  const VersionName name = put_one(*repository_, {1, 2, 3}, 0.5);
  const auto answer = repository_->match(query({1, 2, 3}));
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_EQ(answer->top.at(0).version, name);
  EXPECT_EQ(answer->answered_by, "");
  EXPECT_THAT(answer->providers, SizeIs(3));
  EXPECT_EQ(world_.at("p0").match_for_all({.match = query({1, 2, 3})}).error().code(), Code::unsupported);
}

TEST(SeenPosition, KnowsWhichLifeIsTheLaterOne) {
  SeenPosition seen;
  EXPECT_EQ(seen.position(), std::nullopt);
  seen.note({.position = {.life = 5, .change = 3}, .asked = 1, .heard = 2});
  seen.note({.position = {.life = 5, .change = 2}, .asked = 3, .heard = 4});
  EXPECT_EQ(seen.position(), (FeedPosition{.life = 5, .change = 3}));
  seen.note({.position = {.life = 6, .change = 1}, .asked = 5, .heard = 6});
  EXPECT_EQ(seen.position(), (FeedPosition{.life = 6, .change = 1})) << "asked after all that was heard";
  seen.note({.position = {.life = 5, .change = 9}, .asked = 3, .heard = 4});
  EXPECT_EQ(seen.position(), (FeedPosition{.life = 6, .change = 1})) << "it is an old one";
  const std::uint64_t asked = feed_tick();
  const std::uint64_t heard = feed_tick();
  seen.note({.position = {.life = 7, .change = 1}, .asked = heard + 1, .heard = heard + 9});
  seen.note({.position = {.life = 8, .change = 1}, .asked = asked, .heard = heard + 5});
  EXPECT_EQ(seen.position()->life, 0u) << "either may be the later one";
  for (int i = 0; i < 20; ++i) feed_tick();
  const std::uint64_t later = feed_tick();
  seen.note({.position = {.life = 8, .change = 2}, .asked = later, .heard = later});
  EXPECT_EQ(seen.position(), (FeedPosition{.life = 8, .change = 2}));
}

}  // namespace
}  // namespace freshet
