// SPDX-License-Identifier: Apache-2.0
/// What goes on, and what waits, while one of several providers is away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "repo/files/import.h"
#include "repo/match/graph.h"
#include "tests/repo/cluster/cluster_world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Away : public ::testing::Test {
 protected:
  std::string home_of(const VersionId& id) { return world_.placement().providers()[world_.placement().home(id)].id; }
  std::string registrar_of(const std::string& model) {
    return world_.placement().providers()[world_.placement().registrar(model)].id;
  }
  /// A model whose versions `registrar` numbers, or, with `is`, another one.
  std::string model_numbered_by(const std::string& registrar, bool is = true) {
    std::string model;
    do {
      model = format("net{}", next_model_++);
    } while ((registrar_of(model) == registrar) != is);
    return model;
  }
  /// A version with an identity that hashes to that provider.
  TestVersion version_at(const std::string& home, const std::string& model, const TestVersion* ancestor,
                         const std::vector<std::uint32_t>& changed) {
    VersionId id;
    do {
      id = test_id(next_id_++);
    } while (home_of(id) != home);
    return make_version(model, id, architecture_, ancestor, changed, random_);
  }
  TestVersion stored_at(const std::string& home, const std::string& model, const TestVersion* ancestor,
                        const std::vector<std::uint32_t>& changed, Repository::PutOptions options = {}) {
    TestVersion version = version_at(home, model, ancestor, changed);
    const auto name = put(*repository_, version, options);
    EXPECT_TRUE(name) << name.error().message();
    if (name) version.manifest.name = *name;
    return version;
  }
  /// As a person's put does it.
  Result<VersionName> put_file(Repository& repository, const std::string& model) {
    std::vector<std::vector<std::byte>> bytes;
    std::vector<TensorView> tensors;
    for (const TensorSpec& spec : architecture_->tensors()) {
      bytes.push_back(random_bytes(spec.bytes(), random_));
      tensors.push_back({spec, bytes.back()});
    }
    FRESHET_ASSIGN(const StagedPut staged,
                   stage_put(repository, {.model = model, .architecture = architecture_, .tensors = tensors}));
    return repository.put(staged.manifest, staged.bytes_of(), staged.options);
  }
  MatchQuery query() { return {.graph = MatchGraph::of(*architecture_)}; }

  std::mt19937_64 random_{20261122};
  std::uint64_t next_id_ = 1;
  int next_model_ = 0;
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200, 300, 400});
  ClusterWorld world_{3};
  std::unique_ptr<ClusterRepository> repository_ = world_.open();
};

TEST_F(Away, APutFindsAHomeThatAnswers) {
  world_.cut("p1");
  for (int i = 0; i < 40; ++i) {
    const auto name = put_file(*repository_, model_numbered_by("p1", false));
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_NE(home_of(repository_->get(*name)->manifest.id), "p1");
    EXPECT_TRUE(read_all(*world_.open(), *name));
  }
  world_.mend("p1");
  EXPECT_EQ(repository_->stat()->versions, 40u) << "asked, it is known to be back";
  std::set<std::string> homes;
  for (int i = 0; i < 60; ++i) {
    const auto name = put_file(*repository_, model_numbered_by("p1", false));
    ASSERT_TRUE(name) << name.error().message();
    homes.insert(home_of(repository_->get(*name)->manifest.id));
  }
  EXPECT_THAT(homes, SizeIs(3));
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
}

TEST_F(Away, AHomeWhoseDiskIsFullIsNotTheOnlyOne) {
  world_.fill_disk("p1", true);
  for (int i = 0; i < 20; ++i) {
    const auto name = put_file(*repository_, model_numbered_by("p1", false));
    ASSERT_TRUE(name) << name.error().message();
  }
  world_.fill_disks(true);
  EXPECT_EQ(put_file(*repository_, "net").error().code(), Code::out_of_space);
}

TEST_F(Away, AnIdentityThatIsSomebodysOwnWaitsForItsHome) {
  world_.cut("p1");
  const TestVersion version = version_at("p1", model_numbered_by("p1", false), nullptr, {});
  EXPECT_TRUE(is_refused(put(*repository_, version), Code::unavailable, "provider p1 (mem://p1)"));
  world_.mend("p1");
  const auto stored = put(*repository_, version);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_EQ(repository_->find(version.manifest.id).value(), *stored);
}

TEST_F(Away, APutWhoseHomeDiesInItIsPutElsewhereAndLeavesNothing) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion parent = stored_at("p0", model, nullptr, {});
  TestVersion version = version_at("p1", model, &parent, {1});
  bool died = false;
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (!std::exchange(died, true)) world_.cut("p1");
    return Bytes(version.bytes[tensor]);
  };
  const auto name = repository_->put(version.manifest, bytes_of, {.drawn_id = true});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_TRUE(died);
  EXPECT_NE(home_of(repository_->get(*name)->manifest.id), "p1");
  EXPECT_EQ(read_all(*repository_, *name).value(), version.bytes);

  // Its home had stored it, and could not say so any more.
  world_.mend("p1");
  EXPECT_EQ(repository_->stat()->versions, 3u);
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(repository_->stat()->versions, 2u);
  const auto rows = repository_->versions(model).value();
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(std::ranges::count(rows, true, &LineageRow::retired), 1);
  EXPECT_FALSE(rows.back().retired);
  EXPECT_EQ(repository_->stat()->live_bytes, 1000u + 200u);
  EXPECT_EQ(read_all(*world_.open(), *name).value(), version.bytes);
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
}

TEST_F(Away, WhatRestsWithAProviderThatIsAwayIsAskedOfTheCaller) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion parent = stored_at("p1", model, nullptr, {});
  world_.cut("p1");
  for (const bool knows : {true, false}) {
    if (!knows) repository_ = world_.open();
    const TestVersion child = stored_at("p0", model, &parent, {2});
    EXPECT_EQ(read_all(*repository_, child.manifest.name).value(), child.bytes) << "nothing of it is away";
    // Who inherits from the child need not have what the child keeps a copy of.
    TestVersion next = version_at("p2", model, &child, {3});
    const auto own = [&](std::uint32_t tensor) -> Result<Bytes> {
      if (tensor != 3) return fail(Code::corrupt, "it was not given");
      return Bytes(next.bytes[tensor]);
    };
    const auto name = repository_->put(next.manifest, own, {});
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(read_all(*world_.open(), *name).value(), next.bytes);
  }

  world_.mend("p1");
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
  ASSERT_TRUE(repository_->retire(parent.manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_EQ(world_.at("p1").stat()->live_bytes, 0u);
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
}

TEST_F(Away, WhatIsAliveIsCountedThoughNothingIsErased) {
  (void)stored_at("p0", model_numbered_by("p1", false), nullptr, {});
  world_.cut("p1");
  const auto report = repository_->gc({}, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->live_bytes, world_.at("p0").stat()->live_bytes);
  EXPECT_GT(report->live_bytes, 0u);
  EXPECT_FALSE(report->notes.empty()) << "who is away is named";
}

TEST_F(Away, WhoHasNotGotTheBytesIsToldOfProviderAndAncestor) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion parent = stored_at("p1", model, nullptr, {});
  world_.cut("p1");
  const TestVersion child = version_at("p0", model, &parent, {2});
  const auto own = [&](std::uint32_t tensor) -> Result<Bytes> {
    if (tensor != 2) return fail(Code::corrupt, "the ancestor's bytes are not stored");
    return Bytes(child.bytes[tensor]);
  };
  const auto refused = repository_->put(child.manifest, own, {});
  ASSERT_TRUE(is_refused(refused, Code::unavailable));
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("provider p1 (mem://p1)"), HasSubstr(to_string(parent.manifest.name)),
                    HasSubstr("layer0.kernel"), HasSubstr("the put does not have its bytes")));
  for (const char* id : {"p0", "p2"}) EXPECT_THAT(world_.at(id).referrers().value(), IsEmpty());
  world_.mend("p1");
  EXPECT_TRUE(repository_->put(child.manifest, own, {}));
}

TEST_F(Away, AModelWhoseRegistrarIsAwayWaitsAndOthersDoNot) {
  world_.cut("p1");
  const std::string waits = model_numbered_by("p1");
  const auto refused = put_file(*repository_, waits);
  ASSERT_TRUE(is_refused(refused, Code::unavailable));
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("no version of " + waits + " can be put"),
                                               HasSubstr("provider p1 (mem://p1)"), HasSubstr("other models")));
  EXPECT_TRUE(put_file(*repository_, model_numbered_by("p1", false)));
  world_.mend("p1");
  EXPECT_EQ(put_file(*repository_, waits)->number, 1u);
}

// Its home keeps it for an alias that somebody died moving: only the registrar knows that it means another one.
TEST_F(Away, WhatAnAliasMayMeanIsRetiredWhenTheRegistrarIsBack) {
  const TestVersion first = stored_at("p0", model_numbered_by("p1"), nullptr, {});
  const VersionName& name = first.manifest.name;
  ASSERT_TRUE(world_.at("p0").keep_for_alias(name.model, "best", std::nullopt, name.number));
  world_.cut("p1");
  const auto refused = repository_->retire(name, {});
  ASSERT_TRUE(is_refused(refused, Code::unavailable));
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr("whether an alias means"), HasSubstr("provider p1 (mem://p1)")));
  world_.mend("p1");
  const auto retired = repository_->retire(name, {});
  EXPECT_TRUE(retired) << retired.error().message();
}

TEST_F(Away, WhoeverNumberedNamesBeforeTheOthersJoinedIsNotNeededForThem) {
  ClusterWorld world(1);
  const auto first = world.open();
  std::map<std::string, VersionNumber> numbers;
  for (int i = 0; i < 40; ++i) numbers[put_file(*first, format("old{}", i))->model] = 1;
  EXPECT_TRUE(first->retire({.model = "old7", .number = 1}, {}));
  for (const auto& [model, number] : numbers)
    EXPECT_EQ(first->set_alias(model, "best", 0, number).has_value(), model != "old7");
  Placement placement = world.placement();
  for (int i = 0; i < 2; ++i) placement = cluster::join(placement, world.add(), world.connect()).value();
  const auto repository = std::move(*ClusterRepository::open(placement, world.connect()));
  world.cut("p0");
  const auto is_its = [&](const std::string& model) { return placement.registrar(model) == placement.index_of("p0"); };
  int others = 0;
  for (const auto& [model, number] : numbers) {
    const auto next = put_file(*repository, model);
    ASSERT_EQ(next.has_value(), !is_its(model)) << model;
    if (!next) continue;
    ++others;
    EXPECT_EQ(next->number, number + 1);
    const std::vector<Alias> best{{.name = "best", .number = 1}};
    EXPECT_EQ(repository->aliases(model).value(), model == "old7" ? std::vector<Alias>() : best);
    EXPECT_TRUE(put_file(*repository, "new-" + model) || is_its("new-" + model));
  }
  EXPECT_GT(others, 10);
}

TEST_F(Away, WhoKnowsAnOlderPlacementFindsTheRegistrarOfNow) {
  ClusterWorld world(2);
  const auto repository = world.open();
  Placement placement = cluster::join(world.placement(), world.add(), world.connect()).value();
  std::string model;
  const auto was = [&](const std::string& id) {
    return world.placement().registrar(model) == world.placement().index_of(id);
  };
  for (int i = 0; !(was("p0") && placement.registrar(model) == placement.index_of("p2")); ++i)
    model = format("net{}", i);
  world.cut("p0");
  EXPECT_EQ(put_file(*repository, model)->number, 1U);
  EXPECT_EQ(repository->placement().number(), 2U);
}

TEST_F(Away, AMatchForAReaderOffersWhatCanBeRead) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion root = stored_at("p1", model, nullptr, {}, {.quality = 0.1});
  const TestVersion whole = stored_at("p0", "whole", nullptr, {}, {.quality = 0.2});
  TestVersion best;
  // More than are asked for at first, of each provider.
  for (int i = 0; i < 40; ++i) {
    best = stored_at(i % 2 == 0 ? "p0" : "p2", model, &root, {1}, {.quality = 0.5 + 0.01 * i});
  }
  world_.cut("p1");
  MatchQuery asked = query();
  EXPECT_EQ(repository_->match(asked)->top.front().version, best.manifest.name) << "nobody said that he reads";
  asked.pin_by = "worker";
  for (int i = 0; i < 2; ++i) {
    const auto answer = repository_->match(asked);
    ASSERT_TRUE(answer) << answer.error().message();
    ASSERT_THAT(answer->top, SizeIs(1));
    EXPECT_EQ(answer->top.front().version, whole.manifest.name);
    EXPECT_TRUE(read_all(*repository_, answer->top.front().version));
    EXPECT_THAT(answer->without, SizeIs(2));
    EXPECT_THAT(answer->without, Contains(AllOf(HasSubstr(to_string(best.manifest.name)), HasSubstr("39 more"),
                                                HasSubstr("provider p1 (mem://p1), which is away"))));
    ASSERT_TRUE(repository_->unpin(whole.manifest.name, "worker"));
  }
  EXPECT_THAT(repository_->pins(best.manifest.name).value(), IsEmpty());
  asked.readable = false;
  EXPECT_EQ(repository_->match(asked)->top.front().version, best.manifest.name);
  asked.readable = true;
  asked.pin_by.clear();
  EXPECT_EQ(repository_->match(asked)->top.front().version, whole.manifest.name);
  world_.mend("p1");
  const auto answer = repository_->match(asked);
  EXPECT_EQ(answer->top.front().version, best.manifest.name);
  EXPECT_THAT(answer->without, IsEmpty());
}

TEST_F(Away, AMatchLeavesNobodyOutForLayersThatAreNotShared) {
  const TestVersion root = stored_at("p1", model_numbered_by("p1", false), nullptr, {});
  // The last layer's tensor is all that rests with the one that is away.
  const TestVersion child = stored_at("p0", root.manifest.name.model, &root, {0, 1, 2}, {.quality = 0.9});
  world_.cut("p1");
  MatchQuery asked{.graph = MatchGraph::of(*test_architecture({100, 200, 300})), .pin_by = "worker"};
  EXPECT_EQ(repository_->match(asked)->top.front().version, child.manifest.name);
  asked.graph = MatchGraph::of(*architecture_);
  EXPECT_THAT(repository_->match(asked)->top, IsEmpty());
}

TEST_F(Away, ANumberThatIsHonouredIsKeptByEveryTry) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion parent = stored_at("p1", model, nullptr, {});
  world_.cut("p1");
  TestVersion child = version_at("p0", model, &parent, {2});
  child.manifest.name.number = 7;
  EXPECT_EQ(put(*repository_, child)->number, 7u) << "what it inherits was asked of p1 first";
  TestVersion drawn = version_at("p2", model, &parent, {2});
  EXPECT_EQ(put(*repository_, drawn, {.drawn_id = true})->number, 8u);
}

TEST_F(Away, TheAncestorsRecordSaysWhereItsTensorsAreWhateverIsRemembered) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion root = stored_at("p1", model, nullptr, {});
  world_.cut("p1");
  const TestVersion copies = stored_at("p0", model, &root, {2});
  world_.mend("p1");
  const auto next = [&](Repository& at, const std::string& home, const TestVersion& ancestor, std::uint32_t changed) {
    TestVersion version = version_at(home, model, &ancestor, {changed});
    const auto own = [&](std::uint32_t tensor) -> Result<Bytes> {
      if (tensor != changed) return fail(Code::corrupt, "it was not given");
      return Bytes(version.bytes[tensor]);
    };
    const auto name = at.put(version.manifest, own, {});
    EXPECT_TRUE(name) << name.error().message();
    if (!name) return version;
    version.manifest.name = *name;
    EXPECT_EQ(read_all(*world_.open(), *name).value(), version.bytes);
    return version;
  };
  // One who saw the copies first, and needs what only the writer's home has.
  const TestVersion other = stored_at("p2", model, &root, {0});
  for (const char* home : {"p0", "p1", "p2"}) {
    const auto saw_copies = world_.open();
    ASSERT_TRUE(saw_copies->get(copies.manifest.name));
    next(*saw_copies, home, other, 1);
  }
  // One who remembers the writer's home, which has let go of what only the copies' home needs.
  const auto rows = repository_->descendants(other.manifest.name).value();
  for (const LineageRow& row : rows) ASSERT_TRUE(repository_->retire(row.version, {}));
  for (const TestVersion* one : {&other, &root}) ASSERT_TRUE(repository_->retire(one->manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  const TestVersion beside = next(*world_.open(), "p1", copies, 1);
  for (const char* home : {"p0", "p1", "p2"}) {
    next(*repository_, home, copies, 1);
    next(*repository_, home, beside, 3);
  }
  EXPECT_THAT(repository_->verify(std::nullopt, {})->corrupt, IsEmpty());
}

TEST_F(Away, WhatTheCallerCannotGiveIsNotTheHomesFailure) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion version = version_at("p1", model, nullptr, {});
  int asked = 0;
  const auto refused = repository_->put(version.manifest,
                                        [&](std::uint32_t) -> Result<Bytes> {
                                          ++asked;
                                          return fail(Code::unavailable, "the file's host is away");
                                        },
                                        {.drawn_id = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(asked, 1);
  EXPECT_THAT(refused.error().message(), HasSubstr("the file's host is away"));
}

TEST_F(Away, AMatchForAReaderIsOfAllThatCanBeRead) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion root = stored_at("p1", model, nullptr, {}, {.quality = 0.1});
  // More than one provider is asked for at first are in the way of the one that is best.
  for (int i = 0; i < 30; ++i) stored_at("p0", model, &root, {1}, {.quality = 0.9});
  const TestVersion best = stored_at("p0", "best", nullptr, {}, {.quality = 0.5});
  stored_at("p2", "next", nullptr, {}, {.quality = 0.3});
  world_.cut("p1");
  MatchQuery asked = query();
  asked.readable = true;
  for (int i = 0; i < 2; ++i) {
    const auto answer = repository_->match(asked);
    ASSERT_TRUE(answer) << answer.error().message();
    ASSERT_THAT(answer->top, SizeIs(1));
    EXPECT_EQ(answer->top.front().version, best.manifest.name);
  }
  asked.top = 3;
  const auto answer = repository_->match(asked);
  ASSERT_THAT(answer->top, SizeIs(2));
  EXPECT_EQ(answer->top.front().version, best.manifest.name);
}

TEST_F(Away, AMatchForAReaderSaysWhereItStoppedLooking) {
  const std::string model = model_numbered_by("p1", false);
  const TestVersion root = stored_at("p1", model, nullptr, {}, {.quality = 0.1});
  for (int i = 0; i < 260; ++i) stored_at("p0", model, &root, {1}, {.quality = 0.9});
  stored_at("p2", "worse", nullptr, {}, {.quality = 0.3});
  world_.cut("p1");
  MatchQuery asked = query();
  asked.readable = true;
  const auto answer = repository_->match(asked);
  ASSERT_TRUE(answer) << answer.error().message();
  EXPECT_THAT(answer->top, IsEmpty());
  EXPECT_THAT(answer->without, Contains(HasSubstr("no others were looked at")));
}

TEST(AwayMember, WhoeverIsSilentIsNotWaitedForByEachCall) {
  ManualClock clock;
  clock.advance(std::chrono::hours(1));
  const auto store = open_or_die(make_memory_backend());
  int tries = 0;
  Duration silence = std::chrono::seconds(3);
  bool there = false;
  const cluster::Member member(
      {.id = "p", .address = "tcp://host:1"},
      [&](const Provider&) -> Result<std::shared_ptr<ProviderRepository>> {
        ++tries;
        if (there) return std::shared_ptr<ProviderRepository>(store.get(), [](ProviderRepository*) {});
        clock.advance(silence);
        return fail(Code::unavailable, "no answer");
      },
      clock);
  const auto ask = [&] { return member.ask([](ProviderRepository& at) { return at.models(); }); };
  EXPECT_FALSE(member.is_away());
  for (int i = 0; i < 5; ++i) {
    const auto answer = ask();
    ASSERT_FALSE(answer);
    EXPECT_THAT(answer.error().message(), HasSubstr("provider p (tcp://host:1): no answer"));
  }
  EXPECT_EQ(tries, 1);
  EXPECT_TRUE(member.is_away() && member.is_to_be_avoided());
  clock.advance(cluster::kFailAtOnce);
  EXPECT_FALSE(member.is_to_be_avoided());
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(ask());
  EXPECT_EQ(tries, 2);
  // One that refuses is tried by every call.
  silence = {};
  clock.advance(cluster::kFailAtOnce);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(ask());
  EXPECT_EQ(tries, 5);
  clock.advance(cluster::kAvoidMin * 15);
  EXPECT_TRUE(member.is_to_be_avoided()) << "it was away five times";
  there = true;
  EXPECT_TRUE(ask());
  EXPECT_FALSE(member.is_away() || member.is_to_be_avoided());
}

}  // namespace
}  // namespace freshet
