// SPDX-License-Identifier: Apache-2.0
/// What providers know of each other's needs: lost by hand, found by verify, made good by repair and by gc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "repo/records/records.h"
#include "tests/repo/cluster/cluster_world.h"

namespace freshet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ReferenceCheck : public ::testing::Test {
 protected:
  /// Its manifest, where it is kept.
  void damage_child() {
    const std::string home = home_of(child_);
    const VersionRow row =
        decode_version_row(world_.backend(home).get(version_key(child_.manifest.name)).value()).value();
    ASSERT_TRUE(world_.backend(home).apply({Backend::Put{entry_key(row.group, row.entry), "?"}}));
    repository_.reset();
    world_.restart(home);
    repository_ = world_.open();
  }
  TestVersion put_next(const TestVersion* ancestor, const std::vector<std::uint32_t>& changed) {
    TestVersion version = make_version("net", test_id(next_id_++), architecture_, ancestor, changed, random_);
    const auto name = put(*repository_, version);
    EXPECT_TRUE(name) << name.error().message();
    version.manifest.name = *name;
    return version;
  }
  std::string home_of(const TestVersion& version) {
    return world_.placement().providers()[world_.placement().home(version.manifest.id)].id;
  }
  /// A version and a child of it that have different homes; the child has one tensor of its own.
  void put_pair() {
    do {
      parent_ = put_next(nullptr, {});
      child_ = put_next(&parent_, {2});
    } while (home_of(parent_) == home_of(child_));
    keeper_ = home_of(parent_);
    keys_ = referrer_keys(child_);
    ASSERT_THAT(keys_, SizeIs(1));
  }
  std::vector<std::string> referrer_keys(const TestVersion& version) {
    const auto record = repository_->get(version.manifest.name);
    std::vector<std::string> keys;
    EXPECT_TRUE(world_.backend(keeper_).scan(referrer_prefix(version.manifest.id, record->placed->attempt),
                                             [&](std::string_view key, std::string_view) {
                                               keys.emplace_back(key);
                                               return true;
                                             }));
    return keys;
  }
  /// As a medium loses it: whoever keeps the store hears of it when it is opened next.
  void lose_reference() { change(Backend::Erase{keys_.front()}); }
  void change(Backend::Batch::value_type change) {
    ASSERT_TRUE(world_.backend(keeper_).apply({std::move(change)}));
    repository_.reset();
    world_.restart(keeper_);
    repository_ = world_.open();
  }
  std::vector<VerifyReport::Corrupt> findings(const std::optional<VersionName>& name = std::nullopt) {
    const auto report = world_.open()->verify(name, {});
    EXPECT_TRUE(report) << report.error().message();
    return report ? report->corrupt : std::vector<VerifyReport::Corrupt>();
  }
  void expect_child_survives_its_parent() {
    EXPECT_THAT(findings(), IsEmpty());
    ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
    expect_child_survives();
  }
  void expect_child_survives() {
    EXPECT_THAT(findings(), IsEmpty());
    const auto collected = repository_->gc({}, {});
    ASSERT_TRUE(collected) << collected.error().message();
    EXPECT_THAT(collected->notes, IsEmpty());
    EXPECT_EQ(read_all(*world_.open(), child_.manifest.name).value(), child_.bytes);
    ASSERT_TRUE(repository_->retire(child_.manifest.name, {}));
    ASSERT_TRUE(repository_->gc({}, {}));
    for (std::size_t i = 0; i < 3; ++i) EXPECT_THAT(world_.at(i).referrers().value(), IsEmpty());
  }

  std::mt19937_64 random_{20261122};
  std::uint64_t next_id_ = 1;
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200, 300});
  ClusterWorld world_{3};
  std::unique_ptr<ClusterRepository> repository_ = world_.open();
  TestVersion parent_;
  TestVersion child_;
  std::string keeper_;
  std::vector<std::string> keys_;
};

TEST_F(ReferenceCheck, NothingIsFoundWhereNothingIsLost) {
  put_pair();
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_THAT(report->corrupt, IsEmpty());
  EXPECT_THAT(report->unneeded, IsEmpty());
  EXPECT_THAT(repository_->repair()->repaired, IsEmpty());
  EXPECT_THAT(repository_->repair()->notes, IsEmpty());
}

TEST_F(ReferenceCheck, ALostReferenceIsNamedWithVersionTensorAndProvider) {
  put_pair();
  lose_reference();
  for (const auto& name : {std::optional<VersionName>(), std::optional(child_.manifest.name)}) {
    const auto found = findings(name);
    ASSERT_THAT(found, SizeIs(1));
    EXPECT_EQ(found[0].version, child_.manifest.name);
    EXPECT_EQ(found[0].tensor, "layer0.kernel");
    EXPECT_THAT(found[0].reason, HasSubstr("provider " + keeper_));
    EXPECT_THAT(found[0].reason, HasSubstr(to_string(SegmentName{.writer = parent_.manifest.id, .tensor = 0})));
    EXPECT_THAT(found[0].reason, HasSubstr("and 1 more"));
  }
  EXPECT_THAT(findings(parent_.manifest.name), IsEmpty());
}

TEST_F(ReferenceCheck, WhatWasRetiredMeanwhileIsTakenBackAsLongAsItsBytesAreThere) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  ASSERT_THAT(findings(), SizeIs(1));
  const auto repaired = repository_->repair();
  ASSERT_THAT(repaired->repaired, SizeIs(1)) << ::testing::PrintToString(repaired->notes);
  EXPECT_EQ(repaired->repaired[0].tensors, 2u);
  expect_child_survives();
}

TEST_F(ReferenceCheck, GcTakesBackWhatWasRetiredBeforeItErases) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  ASSERT_THAT(repository_->gc({}, {})->notes, SizeIs(1));
  expect_child_survives();
}

TEST_F(ReferenceCheck, GcErasesNothingWhereItCouldNotTakeBackWhatIsNeeded) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  world_.fill_disks(true);
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_EQ(collected->freed_bytes, 0u);
  EXPECT_THAT(collected->notes, ::testing::Contains(AllOf(HasSubstr("nothing is erased at provider " + keeper_),
                                                          HasSubstr("no space left on device"))));
  world_.fill_disks(false);
  ASSERT_THAT(repository_->repair()->repaired, SizeIs(1));
  expect_child_survives();
}

TEST_F(ReferenceCheck, GcErasesNothingThatAHomeMayNeedThatDoesNotAnswer) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  world_.cut(home_of(child_));
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_THAT(collected->notes, ::testing::Contains(HasSubstr("nothing is erased at provider " + keeper_)));
  world_.mend(home_of(child_));
  ASSERT_THAT(repository_->repair()->repaired, SizeIs(1));
  expect_child_survives();
}

TEST_F(ReferenceCheck, ADamagedVersionHoldsGcUpElsewhereUntilItIsRetired) {
  put_pair();
  const TestVersion other = [&] {
    for (;;) {
      TestVersion version = put_next(nullptr, {});
      if (home_of(version) == keeper_) return version;
      EXPECT_TRUE(repository_->retire(version.manifest.name, {}));
    }
  }();
  ASSERT_TRUE(repository_->gc({}, {}));
  // What its provider knew of it elsewhere is lost as well.
  damage_child();
  lose_reference();
  ASSERT_EQ(repository_->get(child_.manifest.name).error().code(), Code::corrupt);
  ASSERT_TRUE(repository_->retire(other.manifest.name, {}));
  const auto held_up = repository_->gc({}, {});
  ASSERT_TRUE(held_up) << held_up.error().message();
  EXPECT_EQ(held_up->freed_bytes, 0u);
  EXPECT_THAT(held_up->notes, ::testing::Contains(AllOf(HasSubstr("nothing is erased at provider " + keeper_),
                                                        HasSubstr("retire " + to_string(child_.manifest.name)))));
  const auto retired = repository_->retire(child_.manifest.name, {});
  ASSERT_TRUE(retired) << retired.error().message();
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_GE(collected->freed_bytes, 600u);
  EXPECT_THAT(collected->notes, IsEmpty());
  EXPECT_EQ(read_all(*world_.open(), parent_.manifest.name).value(), parent_.bytes);
}

TEST_F(ReferenceCheck, WhatADamagedVersionNamedElsewhereGoesOnceItIsRetired) {
  put_pair();
  damage_child();
  ASSERT_TRUE(repository_->retire(child_.manifest.name, {}));
  EXPECT_THAT(world_.at(keeper_).referrers().value(), SizeIs(1)) << "nobody could read what to drop";
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_THAT(world_.at(keeper_).referrers().value(), IsEmpty());
  EXPECT_EQ(world_.at(keeper_).stat()->live_bytes, 0u);
}

TEST_F(ReferenceCheck, OneThatNamesAProviderThatNobodyKnowsCanBeRetired) {
  put_pair();
  const std::string home = home_of(child_);
  const std::string key = version_key(child_.manifest.name);
  VersionRow row = decode_version_row(world_.backend(home).get(key).value()).value();
  row.placed->moved = {{.writer = parent_.manifest.id, .provider = "nobody"}};
  ASSERT_TRUE(world_.backend(home).apply({Backend::Put{key, encode(row)}}));
  repository_.reset();
  world_.restart(home);
  repository_ = world_.open();
  const auto held_up = repository_->gc({}, {});
  ASSERT_TRUE(held_up) << held_up.error().message();
  EXPECT_THAT(held_up->notes, ::testing::Contains(HasSubstr("retire " + to_string(child_.manifest.name))));
  const auto retired = repository_->retire(child_.manifest.name, {});
  ASSERT_TRUE(retired) << retired.error().message();
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_THAT(collected->notes, IsEmpty());
  EXPECT_THAT(world_.at(keeper_).referrers().value(), IsEmpty());
}

TEST_F(ReferenceCheck, WhatIsGoneIsSaidAndTheRestKept) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  ASSERT_TRUE(world_.backend(keeper_).erase_blob(segment_key({.writer = parent_.manifest.id, .tensor = 0})));
  const auto repaired = repository_->repair();
  EXPECT_THAT(repaired->notes, SizeIs(1));
  ASSERT_THAT(repaired->repaired, SizeIs(1));
  EXPECT_EQ(repaired->repaired[0].tensor, "layer1.kernel");
  ASSERT_TRUE(repository_->gc({}, {}));
  const auto found = findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].tensor, "layer0.kernel");
  EXPECT_THAT(found[0].reason, HasSubstr("provider " + keeper_));
}

TEST_F(ReferenceCheck, WithoutRepairItsBytesGoAndThatIsFound) {
  put_pair();
  lose_reference();
  ASSERT_TRUE(repository_->retire(parent_.manifest.name, {}));
  ASSERT_TRUE(world_.at(keeper_).gc({}, {}));
  for (const auto& name : {std::optional<VersionName>(), std::optional(child_.manifest.name)}) {
    const auto found = findings(name);
    ASSERT_THAT(found, SizeIs(2));
    EXPECT_EQ(found[0].version, child_.manifest.name);
    EXPECT_EQ(found[0].tensor, "layer0.kernel");
    EXPECT_EQ(found[1].tensor, "layer1.kernel");
    EXPECT_THAT(found[1].reason, HasSubstr("provider " + keeper_));
  }
}

TEST_F(ReferenceCheck, RepairTellsTheProviderAgain) {
  put_pair();
  lose_reference();
  const auto repaired = repository_->repair();
  ASSERT_TRUE(repaired) << repaired.error().message();
  ASSERT_THAT(repaired->repaired, SizeIs(1));
  EXPECT_EQ(repaired->repaired[0].version, child_.manifest.name);
  EXPECT_EQ(repaired->repaired[0].provider, keeper_);
  EXPECT_EQ(repaired->repaired[0].tensors, 2u);
  EXPECT_THAT(repaired->notes, IsEmpty());
  EXPECT_EQ(referrer_keys(child_), keys_);
  expect_child_survives_its_parent();
}

TEST_F(ReferenceCheck, ADamagedReferenceIsReplaced) {
  put_pair();
  change(Backend::Put{keys_.front(), "x"});
  const auto found = findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].record, HasSubstr("provider " + keeper_));
  const auto repaired = repository_->repair();
  ASSERT_THAT(repaired->repaired, SizeIs(1));
  EXPECT_EQ(repaired->repaired[0].version, child_.manifest.name);
  expect_child_survives_its_parent();
}

TEST_F(ReferenceCheck, GcTellsAgainBeforeItErases) {
  put_pair();
  lose_reference();
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  ASSERT_THAT(collected->notes, SizeIs(1));
  EXPECT_THAT(collected->notes[0], HasSubstr(to_string(child_.manifest.name)));
  EXPECT_THAT(collected->notes[0], HasSubstr("provider " + keeper_));
  expect_child_survives_its_parent();
}

TEST_F(ReferenceCheck, WhatOneTensorOfManyLostIsFound) {
  put_pair();
  ReferrerRow row = decode_referrer(world_.backend(keeper_).get(keys_.front()).value()).value();
  ASSERT_THAT(row.tensors, ::testing::ElementsAre(0, 1));
  row.tensors = {0};
  change(Backend::Put{keys_.front(), encode(row)});
  const auto found = findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].tensor, "layer1.kernel");
  ASSERT_THAT(repository_->repair()->repaired, SizeIs(1));
  expect_child_survives_its_parent();
}

TEST_F(ReferenceCheck, AReferenceOfNobodyIsNoDamageAndGcDropsIt) {
  put_pair();
  ASSERT_TRUE(world_.at(keeper_).add_referrer({.version = test_id(1000),
                                               .attempt = 5,
                                               .home = home_of(child_),
                                               .segments = {{.writer = parent_.manifest.id, .tensor = 0}}}));
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_THAT(report->corrupt, IsEmpty());
  ASSERT_THAT(report->unneeded, SizeIs(1));
  EXPECT_THAT(report->unneeded[0].what, HasSubstr(to_string(test_id(1000))));
  ASSERT_TRUE(repository_->gc({}, {}));
  EXPECT_THAT(repository_->verify(std::nullopt, {})->unneeded, IsEmpty());
}

TEST_F(ReferenceCheck, WhatIsAwayIsNotTakenForLost) {
  put_pair();
  world_.cut(home_of(child_));
  const auto collected = repository_->gc({}, {});
  ASSERT_TRUE(collected) << collected.error().message();
  EXPECT_THAT(collected->notes, ::testing::Not(IsEmpty()));
  EXPECT_EQ(repository_->verify(std::nullopt, {}).error().code(), Code::unavailable);
  world_.mend(home_of(child_));
  EXPECT_THAT(findings(), IsEmpty());
}

TEST_F(ReferenceCheck, PutsAndRetirementsMeanwhileAreNoFindings) {
  put_pair();
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const auto client = world_.open();
    std::mt19937_64 random(3);
    TestVersion last = parent_;
    for (std::uint64_t id = 2000; !stop; ++id) {
      TestVersion next =
          make_version("other", test_id(id), architecture_, &last, {static_cast<std::uint32_t>(id % 3)}, random);
      const auto name = put(*client, next);
      ASSERT_TRUE(name) << name.error().message();
      next.manifest.name = *name;
      if (id > 2000) {
        ASSERT_TRUE(client->retire(last.manifest.name, {}));
      }
      last = next;
    }
  });
  for (int i = 0; i < 20; ++i) {
    for (const VerifyReport::Corrupt& one : findings()) {
      ADD_FAILURE() << to_string(one.version) << " " << one.tensor << one.record << ": " << one.reason;
    }
  }
  EXPECT_THAT(repository_->repair()->repaired, IsEmpty());
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace freshet
