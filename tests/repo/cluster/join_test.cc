// SPDX-License-Identifier: Apache-2.0
/// Providers that come to keep one repository together, and what they kept before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/placement/membership.h"
#include "tests/repo/cluster/cluster_world.h"

namespace freshet {
namespace {

using ::testing::HasSubstr;

class Joining : public ::testing::Test {
 protected:
  std::mt19937_64 random_{20261122};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200});
  ClusterWorld world_{3};
};

// Whoever looks changes nothing: the provider that joins finishes it when it is started again.
TEST_F(Joining, AJoinThatDiedHalfWayPausesPutsUntilItIsDoneAgain) {
  const Provider added = world_.add();
  const Provider other = world_.add();
  bool paused = false;
  for (int stop = 0; stop < 40; ++stop) {
    int calls = 0;
    world_.set_fate([&] { return ++calls > stop ? Fate::lost : Fate::done; });
    cluster::JoinTrace trace;
    const auto joined = cluster::join(world_.placement(), added, world_.connect(), &trace);
    world_.set_fate(nullptr);
    const auto newest = cluster::newest_placement(world_.placement(), world_.connect());
    ASSERT_TRUE(newest);
    if (newest->number() == 2) {
      EXPECT_TRUE(joined || trace.told);
      const bool done = cluster::placement_at(world_.at("p3")).has_value();
      EXPECT_EQ(joined.has_value(), done);
      cluster::JoinTrace others;
      if (!done) {
        EXPECT_EQ(cluster::join(*newest, other, world_.connect(), &others).error().code(), Code::unavailable);
        EXPECT_TRUE(others.others_join);
        EXPECT_FALSE(others.told);
      }
      // Of the models that it will number.
      const auto repository = world_.open();
      std::string model = "net";
      while (newest->registrar(model) != newest->index_of("p3")) model += "t";
      const auto name = put(*repository, make_version(model, test_id(static_cast<std::uint64_t>(stop) + 1),
                                                      architecture_, nullptr, {}, random_));
      EXPECT_EQ(name.has_value(), done);
      if (!name) {
        EXPECT_EQ(name.error().code(), Code::unavailable);
        EXPECT_THAT(name.error().message(), HasSubstr("a provider is joining"));
        EXPECT_EQ(repository->set_alias(model, "best", 0, 0).error().code(), Code::unavailable);
        paused = true;
      }
    } else {
      EXPECT_FALSE(joined);
      EXPECT_EQ(cluster::placement_at(world_.at("p3")).error().code(), Code::not_found);
    }
    if (!joined) continue;
    for (const char* id : {"p0", "p1", "p2", "p3"}) EXPECT_EQ(cluster::placement_at(world_.at(id)).value(), *newest);
    EXPECT_TRUE(paused);
    EXPECT_TRUE(cluster::join(*newest, other, world_.connect()));
    return;
  }
  FAIL() << "it never came to its end";
}

// At each call of one provider's join another one's comes between, as a whole.
TEST(JoiningTogether, OneComesInAndTheOtherTriesAgain) {
  bool between = true;
  for (int moment = 0; between; ++moment) {
    ClusterWorld world(2);
    const Provider one = world.add();
    const Provider other = world.add();
    int calls = 0;
    between = false;
    Result<Placement> second = fail(Code::unavailable, "");
    cluster::JoinTrace second_met;
    world.set_fate([&] {
      if (calls++ != moment) return Fate::done;
      between = true;
      second = cluster::join(world.placement(), other, world.connect(), &second_met);
      return Fate::done;
    });
    cluster::JoinTrace first_met;
    auto first = cluster::join(world.placement(), one, world.connect(), &first_met);
    world.set_fate(nullptr);
    if (!between) {
      ASSERT_TRUE(first);
      break;
    }
    EXPECT_TRUE(first || second) << moment;
    EXPECT_TRUE(first || (first_met.others_join && !first_met.told)) << moment << first.error().message();
    EXPECT_TRUE(second || (second_met.others_join && !second_met.told)) << moment << second.error().message();
    if (!first) first = cluster::join(world.placement(), one, world.connect());
    if (!second) second = cluster::join(world.placement(), other, world.connect());
    ASSERT_TRUE(first && second) << moment;
    const auto newest = cluster::newest_placement(*first, world.connect());
    EXPECT_EQ(newest->providers().size(), 4U) << moment;
    for (const char* id : {"p0", "p1", "p2", "p3"}) EXPECT_EQ(cluster::placement_at(world.at(id)), *newest) << moment;
  }
}

TEST_F(Joining, OneThatIsNotEmptyIsRefusedBeforeAnybodyHearsOfIt) {
  const auto refused = [&](const Provider& added) {
    cluster::JoinTrace trace;
    const auto joined = cluster::join(world_.placement(), added, world_.connect(), &trace);
    EXPECT_FALSE(joined || trace.told || trace.others_join);
    EXPECT_EQ(cluster::placement_at(world_.at("p0"))->number(), 1U);
    return joined ? "" : joined.error().message();
  };
  const Provider added = world_.add();
  const auto name = put(world_.at(added.id), make_version("net", test_id(1), architecture_, nullptr, {}, random_));
  EXPECT_THAT(refused(added), HasSubstr("has its own models (net, …)"));
  ASSERT_TRUE(world_.at(added.id).retire(*name, {}));
  EXPECT_THAT(refused(added), HasSubstr("had its own models (it keeps 1 retired version"));
  const Provider others = world_.add();
  ASSERT_TRUE(cluster::form({others}, world_.connect()));
  ASSERT_TRUE(cluster::join(cluster::placement_at(world_.at(others.id)).value(), world_.add(), world_.connect()));
  EXPECT_EQ(refused(others), "provider p4 belongs to another repository");
}

TEST(ClusterForm, KeepsWhatAProviderHadBefore) {
  std::mt19937_64 random(7);
  const auto architecture = test_architecture({10, 20, 30});
  const auto first = open_or_die(make_memory_backend());
  const auto second = open_or_die(make_memory_backend());
  std::vector<TestVersion> line;
  for (std::uint64_t i = 1; i <= 6; ++i) {
    line.push_back(make_version("net", test_id(i), architecture, line.empty() ? nullptr : &line.back(), {0}, random));
    line.back().manifest.name = put(*first, line.back()).value();
  }
  // Names whose versions are gone, of either's registrar.
  const std::vector<std::string> gone{"a", "b", "c", "d"};
  for (std::uint64_t i = 0; i < gone.size(); ++i) {
    const auto name = put(*first, make_version(gone[i], test_id(100 + i), architecture, nullptr, {}, random));
    ASSERT_TRUE(first->retire(*name, {}));
  }
  ASSERT_TRUE(first->gc({}, {}));
  ASSERT_TRUE(first->set_alias("net", "best", 0, 4));
  const auto connect = [&](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
    ProviderRepository& at = provider.id == "a" ? *first : *second;
    return std::make_shared<LinkedRepository>(at, [] { return Fate::done; });
  };
  EXPECT_EQ(cluster::form({{.id = "a"}, {.id = "b"}}, connect).error().code(), Code::failed_precondition);
  ASSERT_TRUE(cluster::form({{.id = "a"}}, connect));
  const auto placement = cluster::join(cluster::placement_at(*first).value(), {.id = "b"}, connect);
  ASSERT_TRUE(placement) << placement.error().message();
  const auto repository = ClusterRepository::open(*placement, connect).value();
  for (std::uint64_t i = 7; i <= 16; ++i) {
    line.push_back(make_version("net", test_id(i), architecture, &line.back(), {1}, random));
    const auto name = put(*repository, line.back());
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(name->number, i);
    line.back().manifest.name = *name;
  }
  EXPECT_EQ(repository->resolve("net@best").value(), line[3].manifest.name);
  EXPECT_GT(second->stat()->versions, 0u);
  EXPECT_EQ(first->stat()->live_bytes + second->stat()->live_bytes, 60u + 5 * 10 + 10 * 20)
      << "nothing is stored twice";
  for (const TestVersion& version : line)
    EXPECT_EQ(read_all(*repository, version.manifest.name).value(), version.bytes);
  for (std::uint64_t i = 0; i < gone.size(); ++i) {
    const auto name = put(*repository, make_version(gone[i], test_id(200 + i), architecture, nullptr, {}, random));
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(name->number, 2u) << "a number is never given again";
  }
}

// As `freshet provider --join` makes several of one.
TEST(ClusterForm, WhatOneKeptAloneIsKeptWhenAnotherJoins) {
  std::mt19937_64 random(8);
  const auto architecture = test_architecture({10});
  const std::map<std::string, std::unique_ptr<ProviderRepository>> stores = [] {
    std::map<std::string, std::unique_ptr<ProviderRepository>> both;
    for (const char* id : {"a", "b"}) both[id] = open_or_die(make_memory_backend());
    return both;
  }();
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const std::string model = format("net{}", i);
    const VersionName first =
        put(*stores.at("a"), make_version(model, test_id(i), architecture, nullptr, {}, random)).value();
    ASSERT_TRUE(stores.at("a")->set_alias(model, "best", 0, 1));
    const auto last = put(*stores.at("a"), make_version(model, test_id(50 + i), architecture, nullptr, {}, random));
    ASSERT_TRUE(stores.at("a")->retire(*last, {}));
  }
  const auto connect = [&](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
    return std::make_shared<LinkedRepository>(*stores.at(provider.id), [] { return Fate::done; });
  };
  Placement placement = cluster::form({{.id = "a"}}, connect).value();
  placement = cluster::join(placement, {.id = "b"}, connect).value();
  const auto repository = ClusterRepository::open(placement, connect).value();
  for (std::uint64_t i = 1; i <= 20; ++i) {
    const std::string model = format("net{}", i);
    EXPECT_EQ(repository->resolve(model + "@best").value(), (VersionName{.model = model, .number = 1}));
    EXPECT_EQ(put(*repository, make_version(model, test_id(80 + i), architecture, nullptr, {}, random))->number, 3u);
    // Who does not know yet that it is one of several moves no alias behind the others' backs.
    EXPECT_EQ(stores.at("a")->set_alias(model, "best", 1, 0).error().code(), Code::unsupported);
    EXPECT_EQ(repository->resolve(model + "@best").value(), (VersionName{.model = model, .number = 1}));
  }
}

}  // namespace
}  // namespace freshet
