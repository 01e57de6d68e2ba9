/// Providers that come to keep one repository together, and what they kept before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "repo/cluster/cluster_repository.h"
#include "repo/cluster/membership.h"
#include "tests/cluster/cluster_world.h"

namespace freshet {
namespace {

using ::testing::HasSubstr;

class Joining : public ::testing::Test {
 protected:
  std::mt19937_64 random_{20261122};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200});
  ClusterWorld world_{3};
};

TEST_F(Joining, AJoinThatDiedHalfWayIsFinishedByWhoeverComesNext) {
  const Provider added = world_.add();
  for (int stop = 0; stop < 40; ++stop) {
    int calls = 0;
    world_.set_fate([&] { return ++calls > stop ? Fate::lost : Fate::done; });
    const auto joined = cluster::join(world_.placement(), added, world_.connect());
    world_.set_fate(nullptr);
    const auto newest = cluster::newest_placement(world_.placement(), world_.connect());
    ASSERT_TRUE(newest);
    if (newest->number() == 2) {
      ASSERT_EQ(cluster::newest_placement(*newest, world_.connect()), *newest);
      for (const char* id : {"p0", "p1", "p2", "p3"}) EXPECT_EQ(cluster::placement_at(world_.at(id)).value(), *newest);
    } else {
      EXPECT_EQ(cluster::placement_at(world_.at("p3")).error().code(), Code::not_found);
    }
    if (joined) return;
  }
  FAIL() << "it never came to its end";
}

TEST(JoiningTogether, WhoComesSecondJoinsAfterTheFirst) {
  bool between = true;
  for (int moment = 0; between; ++moment) {
    ClusterWorld world(2);
    const Provider one = world.add();
    const Provider other = world.add();
    int calls = 0;
    between = false;
    world.set_fate([&] {
      if (calls++ != moment) return Fate::done;
      between = true;
      EXPECT_TRUE(cluster::join(world.placement(), other, world.connect())) << moment;
      return Fate::done;
    });
    const auto joined = cluster::join(world.placement(), one, world.connect());
    ASSERT_TRUE(joined) << moment << ": " << joined.error().message();
    if (!between) break;
    const auto newest = cluster::newest_placement(*joined, world.connect());
    EXPECT_EQ(newest->providers().size(), 4U) << moment;
    for (const char* id : {"p0", "p1", "p2", "p3"}) EXPECT_EQ(cluster::placement_at(world.at(id)), *newest) << moment;
  }
}

// The one who is told last need not be the one who notices.
TEST_F(Joining, AJoinThatDiedAtItsEndIsFinishedByWhoKnowsOfIt) {
  const Provider added = world_.add();
  bool done = false;
  for (int stop = 0; !done; ++stop) {
    int calls = 0;
    world_.set_fate([&] { return ++calls > stop ? Fate::lost : Fate::done; });
    done = cluster::join(world_.placement(), added, world_.connect()).has_value();
    world_.set_fate(nullptr);
    const auto known = cluster::placement_at(world_.at("p0"));
    if (known->number() < 2) continue;
    EXPECT_EQ(cluster::newest_placement(*known, world_.connect()), *known);
    EXPECT_EQ(cluster::placement_at(world_.at("p3")), *known) << stop;
    return;
  }
  FAIL() << "nobody heard of it";
}

TEST_F(Joining, OneThatIsNotEmptyIsRefusedBeforeAnybodyHearsOfIt) {
  const auto refused = [&](const Provider& added) {
    bool told = false;
    const auto joined = cluster::join(world_.placement(), added, world_.connect(), &told);
    EXPECT_FALSE(joined || told);
    EXPECT_EQ(cluster::placement_at(world_.at("p0"))->number(), 1U);
    return joined ? "" : joined.error().message();
  };
  const Provider added = world_.add();
  const auto name = put(world_.at(added.id), make_version("net", test_id(1), architecture_, nullptr, {}, random_));
  EXPECT_THAT(refused(added), HasSubstr("has models of its own (net, …)"));
  ASSERT_TRUE(world_.at(added.id).retire(*name, {}));
  EXPECT_THAT(refused(added), HasSubstr("had models of its own, of which it remembers 1 retired version"));
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
  const auto connect = [&](const Provider& provider) -> Result<std::shared_ptr<Repository>> {
    Repository& at = provider.id == "a" ? *first : *second;
    return std::make_shared<LinkedRepository>(at, [] { return Fate::done; });
  };
  const auto placement = cluster::form({{.id = "a"}, {.id = "b"}}, connect);
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
  const std::map<std::string, std::unique_ptr<Repository>> stores = [] {
    std::map<std::string, std::unique_ptr<Repository>> both;
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
  const auto connect = [&](const Provider& provider) -> Result<std::shared_ptr<Repository>> {
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
