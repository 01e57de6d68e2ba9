// SPDX-License-Identifier: Apache-2.0
/// A repository that several providers keep, with the providers in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/repo/cluster/cluster_world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class Cluster : public ::testing::Test {
 protected:
  /// A line of versions of one model, each changing one tensor, at whatever providers their identities hash to.
  std::vector<TestVersion> put_line(Repository& repository, int count, const std::string& model = "net") {
    std::vector<TestVersion> line;
    for (int i = 0; i < count; ++i) {
      TestVersion version =
          make_version(model, test_id(next_id_++), architecture_, line.empty() ? nullptr : &line.back(),
                       {static_cast<std::uint32_t>(i % 6)}, random_);
      const auto name = put(repository, version, {.quality = 0.01 * i});
      EXPECT_TRUE(name) << name.error().message();
      version.manifest.name = *name;
      line.push_back(std::move(version));
    }
    return line;
  }
  std::size_t home_of(const TestVersion& version) { return world_.placement().home(version.manifest.id); }
  std::string home_id(const TestVersion& version) { return world_.placement().providers()[home_of(version)].id; }
  std::uint64_t live_bytes() {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < world_.size(); ++i) sum += world_.at("p" + std::to_string(i)).stat()->live_bytes;
    return sum;
  }
  MatchQuery query(const Architecture& architecture) { return {.graph = MatchGraph::of(architecture)}; }

  std::mt19937_64 random_{20261121};
  std::uint64_t next_id_ = 1;
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200, 300, 400, 500, 600});
  ClusterWorld world_{3};
  std::unique_ptr<ClusterRepository> repository_ = world_.open();
};

TEST_F(Cluster, EveryVersionIsReadBackWhereverItsPartsAre) {
  const std::vector<TestVersion> line = put_line(*repository_, 30);
  const auto fresh = world_.open();
  std::set<std::size_t> homes;
  for (std::size_t i = 0; i < line.size(); ++i) {
    EXPECT_EQ(line[i].manifest.name.number, i + 1);
    EXPECT_EQ(read_all(*fresh, line[i].manifest.name).value(), line[i].bytes);
    homes.insert(home_of(line[i]));
  }
  EXPECT_EQ(homes.size(), 3u) << "the line is meant to be spread";
  EXPECT_EQ(fresh->latest("net").value(), 30u);
  EXPECT_TRUE(fresh->verify(std::nullopt, {})->corrupt.empty());
}

TEST_F(Cluster, EachSegmentIsStoredOnceWithTheHomeOfItsWriter) {
  const std::vector<TestVersion> line = put_line(*repository_, 30);
  std::uint64_t unique = 0;
  for (const TestVersion& version : line) {
    for (const std::uint32_t tensor : version.manifest.owners.owned_by(version.manifest.id)) {
      const std::vector<std::byte>& bytes = version.bytes[tensor];
      unique += bytes.size();
      std::vector<std::byte> out(bytes.size());
      const std::vector<ProviderRepository::SegmentRead> read{
          {.segment = {version.manifest.id, tensor}, .digest = version.manifest.digests[tensor], .out = out}};
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(world_.at(i).read_segments(read).has_value(), i == home_of(version));
      }
    }
  }
  EXPECT_EQ(live_bytes(), unique);
  EXPECT_EQ(repository_->stat()->live_bytes, unique);
  EXPECT_EQ(repository_->stat()->versions, 30u);
  EXPECT_EQ(repository_->stat()->models, 1u);
}

TEST_F(Cluster, OnlyWhatChangedIsAskedForAlsoByAClientThatKnowsNothing) {
  const std::vector<TestVersion> line = put_line(*repository_, 12);
  const TestVersion child = make_version("net", test_id(100), architecture_, &line.back(), {3}, random_);
  const auto fresh = world_.open();
  std::vector<std::uint32_t> asked;
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    asked.push_back(tensor);
    return Bytes(child.bytes[tensor]);
  };
  const auto name = fresh->put(child.manifest, bytes_of, {});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_THAT(asked, ::testing::ElementsAre(3));
  EXPECT_EQ(read_all(*fresh, *name).value(), child.bytes);
}

TEST_F(Cluster, ASinkThatJoinedLateAdoptsWhatNobodyHas) {
  const TestVersion never = make_version("net", test_id(200), architecture_, nullptr, {}, random_);
  const TestVersion first = make_version("net", test_id(201), architecture_, &never, {0}, random_);
  const TestVersion second = make_version("net", test_id(202), architecture_, &first, {1}, random_);
  const auto one = put(*repository_, first);
  const auto two = put(*repository_, second);
  ASSERT_TRUE(one && two);
  EXPECT_EQ(live_bytes(), 2100u + 200u) << "what was adopted is stored once";
  EXPECT_EQ(read_all(*world_.open(), *one).value(), first.bytes);
  EXPECT_EQ(read_all(*world_.open(), *two).value(), second.bytes);
}

TEST_F(Cluster, AStopAtTheEndOfAPutTakesNothingFromItsVersion) {
  const std::vector<TestVersion> line = put_line(*repository_, 12);
  const TestVersion child = make_version("net", test_id(100), architecture_, &line.back(), {3}, random_);
  std::stop_source stop;
  const auto stops_after_the_commit = [&](const Provider& provider) -> Result<std::shared_ptr<ProviderRepository>> {
    ProviderRepository& at = world_.at(provider.id);
    return std::make_shared<LinkedRepository>(
        at, [] { return Fate::done; },
        [&] {
          if (at.find(child.manifest.id).value()) stop.request_stop();
          return false;
        });
  };
  const auto repository = ClusterRepository::open(world_.placement(), stops_after_the_commit).value();
  const auto name = put(*repository, child, {.stop = stop.get_token()});
  EXPECT_TRUE(stop.stop_requested());
  ASSERT_TRUE(name) << name.error().message();
  for (const TestVersion& version : line) ASSERT_TRUE(repository_->retire(version.manifest.name, {}));
  // Each provider by itself: a collection over all of them would first restore what is missing.
  for (std::size_t i = 0; i < world_.size(); ++i) ASSERT_TRUE(world_.at(i).gc({}, {}));
  EXPECT_EQ(read_all(*world_.open(), *name).value(), child.bytes);
}

TEST_F(Cluster, ARetiredVersionsBytesStayAsLongAsSomebodyElsewhereNamesThem) {
  std::vector<TestVersion> line = put_line(*repository_, 12);
  for (std::size_t i = 0; i + 1 < line.size(); ++i) {
    const auto retired = repository_->retire(line[i].manifest.name, {});
    ASSERT_TRUE(retired) << retired.error().message();
    EXPECT_EQ(repository_->get(line[i].manifest.name).error().code(), Code::not_found);
  }
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(live_bytes(), 2100u);
  const auto verified = repository_->verify(std::nullopt, {});
  EXPECT_TRUE(verified->corrupt.empty());
  EXPECT_EQ(verified->checked_bytes, 2100u) << "also what only versions elsewhere name";
  EXPECT_EQ(read_all(*world_.open(), line.back().manifest.name).value(), line.back().bytes);
  EXPECT_EQ(repository_->lineage(line.back().manifest.name)->size(), 12u) << "tombstones keep the line";
  ASSERT_TRUE(repository_->retire(line.back().manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(live_bytes(), 0u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(world_.at(i).referrers()->empty());
  EXPECT_EQ(repository_->latest("net").error().code(), Code::not_found);
  const TestVersion next = make_version("net", test_id(300), architecture_, nullptr, {}, random_);
  EXPECT_EQ(put(*repository_, next)->number, 13u) << "no number is given twice";
}

TEST_F(Cluster, AnAncestorThatWasRetiredIsRefusedWhereverItWas) {
  const std::vector<TestVersion> line = put_line(*repository_, 8);
  for (const TestVersion& version : line) ASSERT_TRUE(repository_->retire(version.manifest.name, {}));
  const auto fresh = world_.open();
  for (const TestVersion& ancestor : line) {
    const TestVersion child = make_version("net", test_id(next_id_++), architecture_, &ancestor, {0}, random_);
    EXPECT_TRUE(is_refused(put(*fresh, child), Code::failed_precondition));
    const auto kept = put(*fresh, child, {.ancestor_may_be_retired = true});
    ASSERT_TRUE(kept) << kept.error().message();
    EXPECT_EQ(read_all(*fresh, *kept).value(), child.bytes);
  }
}

TEST_F(Cluster, PinsAreKeptAtTheHomeAndHoldRetirementsUp) {
  const std::vector<TestVersion> line = put_line(*repository_, 4);
  const VersionName name = line[1].manifest.name;
  ASSERT_TRUE(repository_->pin(name, "worker-1"));
  const auto fresh = world_.open();
  EXPECT_THAT(fresh->pins(name).value(), ::testing::ElementsAre("worker-1"));
  EXPECT_TRUE(is_refused(fresh->retire(name, {}), Code::failed_precondition, "worker-1 (for 120 s, unless it renews)"));
  ASSERT_TRUE(fresh->unpin(name, "worker-1"));
  EXPECT_TRUE(fresh->retire(name, {}));
}

TEST_F(Cluster, AliasesMoveBetweenVersionsOfDifferentProviders) {
  const std::vector<TestVersion> line = put_line(*repository_, 6);
  const auto other = world_.open();
  ASSERT_TRUE(repository_->set_alias("net", "best", 0, 1));
  EXPECT_EQ(other->resolve("net@best")->number, 1u);
  EXPECT_EQ(other->set_alias("net", "best", 0, 2).error().code(), Code::failed_precondition);
  EXPECT_TRUE(other->retire(line[1].manifest.name, {})) << "what it was not given to is free again";
  EXPECT_EQ(other->retire(line[0].manifest.name, {}).error().code(), Code::failed_precondition);
  for (const VersionNumber number : {3, 4, 5, 6}) {
    ASSERT_TRUE(other->set_alias("net", "best", number == 3 ? 1 : number - 1, number));
    EXPECT_EQ(repository_->resolve("net@best")->number, number);
    EXPECT_EQ(other->retire(line[number - 1].manifest.name, {}).error().code(), Code::failed_precondition);
  }
  EXPECT_TRUE(other->retire(line[0].manifest.name, {}));
  EXPECT_EQ(repository_->set_alias("net", "best", std::nullopt, 77).error().code(), Code::not_found);
  ASSERT_TRUE(repository_->set_alias("net", "best", std::nullopt, 0));
  EXPECT_TRUE(other->aliases("net")->empty());
  EXPECT_TRUE(other->retire(line[5].manifest.name, {}));
}

TEST_F(Cluster, WhatWhoeverDiedMovingAnAliasLeftHoldsNobodyUp) {
  const std::vector<TestVersion> line = put_line(*repository_, 3);
  ASSERT_TRUE(repository_->set_alias("net", "best", 0, 1));
  // Its first step alone: the home keeps the version for an alias that never came to mean it.
  for (std::size_t i = 0; i < 3; ++i) (void)world_.at(i).keep_for_alias("net", "best", std::nullopt, 2);
  const auto retired = repository_->retire(line[1].manifest.name, {});
  EXPECT_TRUE(retired) << retired.error().message();
  EXPECT_EQ(repository_->retire(line[0].manifest.name, {}).error().code(), Code::failed_precondition);
  EXPECT_EQ(repository_->resolve("net@best")->number, 1u);
}

TEST_F(Cluster, TheSameVersionTwiceIsRefused) {
  const std::vector<TestVersion> line = put_line(*repository_, 2);
  TestVersion again = line[1];
  again.manifest.name.number = 0;
  EXPECT_EQ(put(*repository_, again).error().code(), Code::already_exists);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(world_.at(i).referrers()->size(), 1u) << "its references went again";
}

TEST_F(Cluster, AMatchIsTheBestOfAllAndPinnedAtItsHome) {
  std::vector<TestVersion> all;
  for (int i = 0; i < 12; ++i) {
    // Sizes from the front on are shared, so that the longest prefix is with the greatest i, whoever has it.
    std::vector<std::uint64_t> sizes{10, 20, 30, 40, 50, 60};
    for (std::size_t layer = static_cast<std::size_t>(i / 2) + 1; layer < sizes.size(); ++layer)
      sizes[layer] += 1000 + static_cast<std::uint64_t>(i);
    all.push_back(make_version("net", test_id(next_id_++), test_architecture(sizes), nullptr, {}, random_));
    const auto name = put(*repository_, all.back(), {.quality = i % 2 == 0 ? 0.9 : 0.1});
    ASSERT_TRUE(name);
    all.back().manifest.name = *name;
  }
  MatchQuery asked = query(*test_architecture({10, 20, 30, 40, 50, 60}));
  asked.pin_by = "worker-7";
  asked.top = 3;
  const auto answer = repository_->match(asked);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->top.size(), 3u);
  EXPECT_EQ(answer->top[0].version, all[10].manifest.name) << "equal prefixes: the higher quality";
  EXPECT_EQ(answer->top[1].version, all[11].manifest.name);
  EXPECT_EQ(answer->top[2].version, all[8].manifest.name);
  EXPECT_TRUE(answer->without.empty());
  EXPECT_THAT(repository_->pins(answer->top[0].version).value(), ::testing::ElementsAre("worker-7"));
  EXPECT_TRUE(repository_->pins(answer->top[1].version)->empty());
}

TEST_F(Cluster, EqualAnswersGoToTheLaterCommitWhoseverItIs) {
  std::vector<VersionName> names;
  for (int i = 0; i < 10; ++i) {
    const TestVersion version = make_version("net", test_id(next_id_++), architecture_, nullptr, {}, random_);
    names.push_back(put(*repository_, version, {.quality = 0.5}).value());
    EXPECT_EQ(repository_->match(query(*architecture_))->top.front().version, names.back());
  }
}

TEST_F(Cluster, ALineIsLeftOutAcrossProviders) {
  const std::vector<TestVersion> line = put_line(*repository_, 10);
  const TestVersion other = make_version("other", test_id(next_id_++), architecture_, nullptr, {}, random_);
  const auto name = put(*repository_, other);
  MatchQuery asked = query(*architecture_);
  asked.exclude_lineage = line[8].manifest.name;
  asked.top = 5;
  const auto answer = repository_->match(asked);
  ASSERT_TRUE(answer) << answer.error().message();
  ASSERT_EQ(answer->top.size(), 2u);
  EXPECT_EQ(answer->top[0].version, line[9].manifest.name);
  EXPECT_EQ(answer->top[1].version, *name);
}

TEST_F(Cluster, LinesAndOwnersCrossProviders) {
  const std::vector<TestVersion> line = put_line(*repository_, 9);
  TestVersion branch = make_version("branch", test_id(next_id_++), architecture_, &line[4], {5}, random_);
  branch.manifest.name = put(*repository_, branch).value();
  const auto rows = repository_->lineage(branch.manifest.name);
  ASSERT_TRUE(rows) << rows.error().message();
  ASSERT_EQ(rows->size(), 6u);
  EXPECT_EQ((*rows)[0].version, branch.manifest.name);
  EXPECT_EQ((*rows)[1].version, line[4].manifest.name);
  EXPECT_EQ((*rows)[5].ancestor.model, "");
  EXPECT_EQ(repository_->mrca(branch.manifest.name, line[8].manifest.name).value(), line[4].manifest.name);
  EXPECT_EQ(repository_->descendants(line[4].manifest.name)->size(), 5u);
  const auto owners = repository_->owners(branch.manifest.name);
  for (std::size_t tensor = 0; tensor < 6; ++tensor) {
    const VersionId writer = branch.manifest.owners[tensor].writer;
    EXPECT_EQ((*owners)[tensor].owner, repository_->find(writer).value().value());
  }
  const auto contributors = repository_->contributors(branch.manifest.name);
  EXPECT_EQ(contributors->front().version, branch.manifest.name);
  EXPECT_TRUE(std::ranges::all_of(*contributors, [](const auto& row) { return row.is_ancestor; }));
  const auto diff = repository_->diff(line[4].manifest.name, branch.manifest.name);
  ASSERT_EQ(diff->tensors_changed.size(), 1u);
  EXPECT_EQ(diff->tensors_changed[0].owner_b, branch.manifest.name);
}

TEST_F(Cluster, AProviderThatIsAwayTakesNothingFromTheOthers) {
  const std::vector<TestVersion> line = put_line(*repository_, 30);
  world_.cut("p1");
  const auto client = world_.open();
  int read = 0;
  for (const TestVersion& version : line) {
    bool touches = home_id(version) == "p1";
    for (const VersionId& writer : version.manifest.owners.writers()) {
      touches = touches || world_.placement().providers()[world_.placement().home(writer)].id == "p1";
    }
    const auto bytes = read_all(*client, version.manifest.name);
    EXPECT_EQ(bytes.has_value(), !touches);
    if (bytes) {
      EXPECT_EQ(*bytes, version.bytes);
      ++read;
    } else {
      EXPECT_EQ(bytes.error().code(), Code::unavailable);
      EXPECT_THAT(bytes.error().message(), ::testing::HasSubstr("provider p1 (mem://p1)"));
    }
  }
  EXPECT_GT(read, 0);
  const auto answer = client->match(query(*architecture_));
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->without.size(), 1u);
  EXPECT_THAT(answer->without[0], ::testing::HasSubstr("provider p1"));
  EXPECT_NE(home_id(line[answer->top.front().version.number - 1]), "p1");

  world_.mend("p1");
  for (const TestVersion& version : line) EXPECT_EQ(read_all(*client, version.manifest.name).value(), version.bytes);
  EXPECT_TRUE(client->match(query(*architecture_))->without.empty());
  EXPECT_TRUE(client->verify(std::nullopt, {})->corrupt.empty());
}

TEST_F(Cluster, AProviderLostBetweenMatchAndReadIsNamed) {
  put_line(*repository_, 6);
  MatchQuery asked = query(*architecture_);
  asked.pin_by = "me";
  const auto answer = repository_->match(asked);
  ASSERT_TRUE(answer);
  const std::string home = world_.placement().providers()[world_.placement().home(answer->top.front().id)].id;
  world_.cut(home);
  EXPECT_TRUE(is_refused(repository_->get(answer->top.front().version), Code::unavailable, "provider " + home));
}

TEST_F(Cluster, AnotherProviderTakesItsShareAndOldVersionsAreStillFound) {
  std::vector<TestVersion> line = put_line(*repository_, 30);
  const Provider added = world_.add();
  const auto joined = cluster::join(world_.placement(), added, world_.connect());
  ASSERT_TRUE(joined) << joined.error().message();
  EXPECT_EQ(joined->number(), 2u);
  EXPECT_EQ(cluster::placement_at(world_.at("p2")).value(), *joined);

  // The client of before still believes in placement 1, until a registrar tells it otherwise.
  EXPECT_EQ(repository_->placement().number(), 1u);
  for (int i = 0; i < 40; ++i) {
    TestVersion version = make_version("net", test_id(next_id_++), architecture_, &line.back(),
                                       {static_cast<std::uint32_t>(i % 6)}, random_);
    const auto name = put(*repository_, version);
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(name->number, line.size() + 1);
    version.manifest.name = *name;
    line.push_back(std::move(version));
  }
  EXPECT_EQ(repository_->placement().number(), 2u);
  EXPECT_GT(world_.at(added.id).stat()->versions, 3u);
  const auto fresh = world_.open();
  for (const TestVersion& version : line) EXPECT_EQ(read_all(*fresh, version.manifest.name).value(), version.bytes);
  for (const TestVersion& version : line) ASSERT_TRUE(fresh->retire(version.manifest.name, {}));
  ASSERT_TRUE(fresh->gc({}, {}));
  EXPECT_EQ(live_bytes(), 0u);
}

TEST_F(Cluster, ProvidersOfAnotherRepositoryAreRefused) {
  ClusterWorld other(2);
  const auto mixed = [&](const Provider& provider) {
    return provider.address.starts_with("other") ? other.connect()({.id = provider.id, .address = provider.address})
                                                 : world_.connect()(provider);
  };
  EXPECT_EQ(
      cluster::form({{.id = "p0", .address = "mem://p0"}, {.id = "p9", .address = "other://p0"}}, mixed).error().code(),
      Code::failed_precondition);
}

}  // namespace
}  // namespace freshet
