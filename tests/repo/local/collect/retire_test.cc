// SPDX-License-Identifier: Apache-2.0
/// Retiring versions and collecting what nobody needs, on both backends.

#include <gtest/gtest.h>

#include <thread>

#include "tests/repo/world.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

class Retire : public testing::TestWithParam<const char*> {
 protected:
  Retire() { reopen(); }

  void reopen() {
    if (lasts()) {
      repository_.reset();
      auto backend = open_rocks_backend({.folder = folder_ / "store"});
      ASSERT_TRUE(backend) << backend.error().message();
      repository_ = open_or_die(std::move(*backend));
    } else if (repository_ == nullptr) {
      repository_ = open_or_die(make_memory_backend());
    }
  }
  bool lasts() const { return GetParam() == std::string("rocksdb"); }

  // Version 1, and each next one with one tensor of its own.
  void put_line(int count, const std::vector<std::uint64_t>& elements = {1000, 2000, 3000}) {
    const auto architecture = test_architecture(elements);
    for (int i = 0; i < count; ++i) {
      const TestVersion* base = line_.empty() ? nullptr : &line_.back();
      const auto changed = static_cast<std::uint32_t>(i % static_cast<int>(elements.size()));
      TestVersion version = make_version("net", test_id(line_.size() + 1), architecture, base, {changed}, random_);
      const auto name = put(*repository_, version, {.quality = 0.5 + i});
      ASSERT_TRUE(name) << name.error().message();
      version.manifest.name = *name;
      line_.push_back(std::move(version));
    }
  }

  void expect_bytes(VersionNumber number) {
    const auto bytes = read_all(*repository_, {.model = "net", .number = number});
    ASSERT_TRUE(bytes) << bytes.error().message();
    EXPECT_EQ(*bytes, line_[number - 1].bytes);
  }

  const TemporaryFolder folder_;
  std::mt19937_64 random_{7};
  std::unique_ptr<ProviderRepository> repository_;
  std::vector<TestVersion> line_;
};

TEST_P(Retire, ATombstoneKeepsTheLine) {
  put_line(3);
  const auto report = repository_->retire({"net", 2}, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->version, (VersionName{"net", 2}));
  EXPECT_EQ(report->released_tensors, 0u);  // Version 3 has inherited all of it.
  for (int round = 0; round < 2; ++round) {
    const auto gone = repository_->get({"net", 2});
    ASSERT_TRUE(is_refused(gone, Code::not_found));
    EXPECT_EQ(gone.error().message(), "net@2 was retired");
    EXPECT_EQ(repository_->pin({"net", 2}, "me").error().code(), Code::not_found);
    EXPECT_EQ(repository_->retire({"net", 2}, {}).error().message(), "net@2 was retired");
    const auto lineage = repository_->lineage({"net", 3});
    ASSERT_EQ(lineage->size(), 3u);
    EXPECT_TRUE((*lineage)[1].retired);
    EXPECT_EQ((*lineage)[1].version, (VersionName{"net", 2}));
    EXPECT_EQ((*lineage)[1].ancestor, (VersionName{"net", 1}));
    EXPECT_EQ((*lineage)[1].quality, 1.5);
    EXPECT_FALSE((*lineage)[2].retired);
    EXPECT_EQ(repository_->lineage({"net", 2})->size(), 2u);
    EXPECT_EQ(repository_->find(test_id(2)).value(), (VersionName{"net", 2}));
    EXPECT_EQ(repository_->owners({"net", 3})->at(1).owner, (VersionName{"net", 2}));
    const auto stat = repository_->stat();
    EXPECT_EQ(stat->versions, 2u);
    EXPECT_EQ(stat->retired_versions, 1u);
    EXPECT_EQ(stat->live_tensors, 5u);
    expect_bytes(1);
    expect_bytes(3);
    reopen();
  }
}

TEST_P(Retire, BytesGoWhenNobodyNamesThem) {
  put_line(3);  // Writes all, {1}, {2}.
  ASSERT_TRUE(repository_->retire({"net", 1}, {}));
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 2000u) << "version 2 names all of version 1 but one tensor";
  EXPECT_EQ(repository_->stat()->live_bytes, 1000u + 2000 + 3000 + 3000);
  const auto released = repository_->retire({"net", 2}, {});
  EXPECT_EQ(released->released_tensors, 1u);
  EXPECT_EQ(released->released_bytes, 3000u);
  EXPECT_EQ(repository_->stat()->live_bytes, 6000u);
  reopen();
  const auto dry = repository_->gc({.dry_run = true}, {});
  ASSERT_TRUE(dry) << dry.error().message();
  EXPECT_EQ(dry->freed_bytes, 3000u);
}

TEST_P(Retire, PutOnARetiredAncestorIsRefused) {
  put_line(2);
  ASSERT_TRUE(repository_->retire({"net", 2}, {}));
  const TestVersion next = make_version("net", test_id(3), line_[1].manifest.architecture, &line_[1], {0}, random_);
  const auto refused = put(*repository_, next);
  ASSERT_TRUE(is_refused(refused, Code::failed_precondition));
  EXPECT_EQ(refused.error().message(), "put net: its ancestor net@2 was retired");
  EXPECT_EQ(put(*repository_, line_[1]).error().code(), Code::already_exists);
  // A sink keeps a run whatever was retired, and what went with the ancestor is asked for again.
  ASSERT_TRUE(repository_->gc({}, {}));
  const auto kept = put(*repository_, next, {.ancestor_may_be_retired = true});
  ASSERT_TRUE(kept) << kept.error().message();
  EXPECT_EQ(kept->number, 3u);
  EXPECT_EQ(read_all(*repository_, *kept).value(), next.bytes);
}

TEST_P(Retire, NumbersAreNeverGivenAgain) {
  put_line(2);
  ASSERT_TRUE(repository_->retire({"net", 2}, {}));
  EXPECT_EQ(repository_->latest("net").value(), 1u);
  EXPECT_EQ(repository_->get({"net", 0})->manifest.name.number, 1u);
  ASSERT_TRUE(repository_->retire({"net", 1}, {}));
  reopen();
  EXPECT_EQ(repository_->latest("net").error().code(), Code::not_found);
  EXPECT_EQ(repository_->get({"net", 0}).error().message(), "all versions of net were retired");
  EXPECT_TRUE(repository_->models()->empty());
  EXPECT_EQ(repository_->versions("net")->size(), 2u);
  const TestVersion next = make_version("net", test_id(9), line_[0].manifest.architecture, nullptr, {}, random_);
  EXPECT_EQ(put(*repository_, next)->number, 3u);
  EXPECT_EQ(repository_->models().value(), std::vector<std::string>{"net"});
}

TEST_P(Retire, WhatIsPinnedIsWaitedFor) {
  put_line(1);
  ASSERT_TRUE(repository_->pin({"net", 1}, "worker7"));
  ASSERT_TRUE(repository_->pin({"net", 1}, "worker9"));
  const auto held = repository_->retire({"net", 1}, {});
  ASSERT_TRUE(is_refused(held, Code::failed_precondition));
  EXPECT_EQ(held.error().message(), "net@1 is pinned by worker7, worker9");
  EXPECT_EQ(repository_->retire({"net", 1}, {.wait = std::chrono::milliseconds(5)}).error().code(),
            Code::failed_precondition);
  Result<RetireReport> waited = fail(Code::cancelled, "not yet");
  std::thread waiting([&] { waited = repository_->retire({"net", 1}, {.wait = std::chrono::hours(1)}); });
  ASSERT_TRUE(repository_->unpin({"net", 1}, "worker7"));
  expect_bytes(1);
  ASSERT_TRUE(repository_->unpin({"net", 1}, "worker9"));
  waiting.join();
  EXPECT_TRUE(waited) << waited.error().message();
}

TEST_P(Retire, WhatAnAliasMeansStays) {
  put_line(2);
  ASSERT_TRUE(repository_->set_alias("net", "best", std::nullopt, 1));
  const auto held = repository_->retire({"net", 1}, {.wait = std::chrono::hours(1)});
  EXPECT_EQ(held.error().code(), Code::failed_precondition);
  EXPECT_EQ(held.error().message(), "net@1 is net@best: move that first");
  ASSERT_TRUE(repository_->set_alias("net", "best", 1, 2));
  EXPECT_TRUE(repository_->retire({"net", 1}, {}));
}

TEST_P(Retire, NoMatchNamesWhatIsGone) {
  put_line(3);
  MatchQuery query{.graph = MatchGraph::of(*line_[0].manifest.architecture), .pin_by = "worker"};
  const auto best = repository_->match(query);
  ASSERT_TRUE(best) << best.error().message();
  EXPECT_EQ(best->top.at(0).version, (VersionName{"net", 3}));
  EXPECT_EQ(repository_->retire({"net", 3}, {}).error().message(), "net@3 is pinned by worker");
  ASSERT_TRUE(repository_->unpin({"net", 3}, "worker"));
  ASSERT_TRUE(repository_->retire({"net", 3}, {}));
  for (int round = 0; round < 2; ++round) {
    const auto next = repository_->match(query);
    EXPECT_EQ(next->top.at(0).version, (VersionName{"net", 2}));
    EXPECT_EQ(next->as_of, best->as_of + 1);
    reopen();
  }
}

TEST_P(Retire, ADryRunSaysWhatAndWhy) {
  put_line(4, {1000, 2000});  // 1: {0,1}; 2: {1}; 3: {0}; 4: {1}.
  ASSERT_TRUE(repository_->retire({"net", 1}, {}));
  ASSERT_TRUE(repository_->retire({"net", 3}, {}));
  for (int round = 0; round < 2; ++round) {
    const auto report = repository_->gc({.dry_run = true}, {});
    ASSERT_TRUE(report) << report.error().message();
    EXPECT_EQ(report->freed_bytes, 2000u);
    EXPECT_EQ(report->live_bytes, 1000u + 2000 + 1000 + 2000);
    std::vector<std::string> reasons;
    for (const GcRow& row : report->rows) reasons.push_back(why(row));
    EXPECT_EQ(reasons, (std::vector<std::string>{"written by net@1, which was retired; no version needs it",
                                                 "written by net@1, which was retired; named by net@2",
                                                 "written by net@3, which was retired; named by net@4"}));
  }
  const auto report = repository_->gc({}, {});
  EXPECT_EQ(report->freed_bytes, 2000u);
  EXPECT_EQ(report->rows.size(), 1u);
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 0u);
  expect_bytes(2);
  expect_bytes(4);
}

TEST_P(Retire, ReferrersElsewhereKeepSegments) {
  put_line(2);
  const ExternalReferrer other{.version = test_id(77), .segments = {line_[0].manifest.owners[1]}};
  const ExternalReferrer unknown{.version = test_id(78), .segments = {{.writer = test_id(99), .tensor = 0}}};
  EXPECT_EQ(repository_->add_referrer(unknown).error().code(), Code::not_found);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(repository_->add_referrer(other));
  EXPECT_EQ(repository_->referrers().value(), std::vector<ExternalReferrer>{other});
  ASSERT_TRUE(repository_->retire({"net", 1}, {}));
  EXPECT_EQ(repository_->retire({"net", 2}, {})->released_tensors, 3u);
  reopen();
  EXPECT_EQ(repository_->stat()->live_bytes, 2000u);
  const auto dry = repository_->gc({.dry_run = true}, {});
  EXPECT_EQ(why(dry->rows.at(1)), "written by net@1, which was retired; named by 1 elsewhere");
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 1000u + 2000 + 3000);
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 0u);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(repository_->drop_referrer(test_id(77), 0));
  EXPECT_EQ(repository_->stat()->live_bytes, 0u);
  EXPECT_EQ(repository_->gc({}, {})->freed_bytes, 2000u);
}

TEST_P(Retire, AfterGcTheDiskHoldsWhatIsLiveAndLittleElse) {
  put_line(20, {50'000, 3'000'000, 700'000});
  for (VersionNumber number = 1; number <= 20; ++number) {
    if (number == 7 || number == 18) continue;
    ASSERT_TRUE(repository_->retire({"net", number}, {}));
  }
  ASSERT_TRUE(repository_->gc({}, {}));
  for (int round = 0; round < 2; ++round) {
    const auto stat = repository_->stat();
    EXPECT_GT(stat->live_bytes, 4'000'000u);
    EXPECT_LE(static_cast<double>(stat->disk_bytes - stat->metadata_bytes),
              static_cast<double>(stat->live_bytes) * 1.01);
    EXPECT_GE(stat->disk_bytes - stat->metadata_bytes, stat->live_bytes);
    EXPECT_LT(stat->metadata_bytes, 200'000u);
    expect_bytes(7);
    expect_bytes(18);
    reopen();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Retire, testing::Values("memory", "rocksdb"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace freshet
