// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "repo/backend/backend_wrapper.h"
#include "repo/match/structure_index.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

const VersionName kFirst{.model = "net", .number = 1};

/// The next batch fails, before or after it was applied.
struct Fault {
  enum { none, before, after } next = none;
};
class FaultyBackend final : public BackendWrapper {
 public:
  FaultyBackend(std::shared_ptr<Backend> inner, std::shared_ptr<Fault> fault)
      : BackendWrapper(std::move(inner)), fault_(std::move(fault)) {}
  Status apply(const Batch& batch) override {
    const auto now = std::exchange(fault_->next, Fault::none);
    if (now == Fault::before) return fail(Code::io_error, "the disk went away");
    const Status applied = inner().apply(batch);
    return now == Fault::after ? fail(Code::io_error, "the answer was lost") : applied;
  }

 private:
  const std::shared_ptr<Fault> fault_;
};

class Annotate : public testing::Test {
 protected:
  void open(std::shared_ptr<Backend> backend) {
    store_ = std::move(backend);
    open_again();
  }
  void open_again() {
    repository_.reset();
    repository_ = open_or_die(std::make_unique<FaultyBackend>(store_, fault_));
  }
  void put_one(Tags tags = {}) {
    TestVersion version = make_version("net", test_id(++sequence_), architecture_, nullptr, {}, random_);
    version.manifest.tags = std::move(tags);
    ASSERT_TRUE(put(*repository_, version, {.quality = 0.5}));
  }
  std::optional<double> quality_by_match() {
    return repository_->match({.graph = MatchGraph::of(*architecture_)})->top.at(0).quality;
  }
  void expect_sound() {
    const auto report = repository_->verify(std::nullopt, {});
    ASSERT_TRUE(report);
    for (const auto& one : report->corrupt) ADD_FAILURE() << to_string(one.version) << one.record << ": " << one.reason;
  }

  std::uint64_t sequence_ = 0;
  std::mt19937_64 random_{7};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({10, 20});
  const std::shared_ptr<Fault> fault_ = std::make_shared<Fault>();
  std::shared_ptr<Backend> store_ = make_memory_backend();
  std::unique_ptr<Repository> repository_ = open_or_die(std::make_unique<FaultyBackend>(store_, fault_));
};

TEST_F(Annotate, WhatWasSaidIsThereAfterARestart) {
  const TemporaryFolder folder;
  {
    auto backend = open_rocks_backend({.folder = folder / "store"});
    ASSERT_TRUE(backend);
    open(std::move(*backend));
    put_one({{"a", "1"}, {"b", "2"}});
    ASSERT_TRUE(
        repository_->annotate(kFirst, {.sets_quality = true, .quality = 9, .tags = {{"a", std::nullopt}, {"c", "3"}}}));
    repository_.reset();
    store_.reset();
  }
  auto backend = open_rocks_backend({.folder = folder / "store"});
  ASSERT_TRUE(backend);
  open(std::move(*backend));
  EXPECT_EQ(repository_->get(kFirst)->manifest.tags, (Tags{{"b", "2"}, {"c", "3"}}));
  EXPECT_EQ(quality_by_match(), 9);
  EXPECT_EQ(repository_->match({.graph = MatchGraph::of(*architecture_), .tags = {{"c", "3"}}})->top.size(), 1u);
  EXPECT_TRUE(repository_->match({.graph = MatchGraph::of(*architecture_), .tags = {{"a", "1"}}})->top.empty());
  expect_sound();
  repository_.reset();
  store_.reset();
}

TEST_F(Annotate, OneCallHasNoMoreTagsThanAVersion) {
  put_one();
  Annotations removals;
  for (std::size_t i = 0; i < kLaterTagsMax; ++i) removals.tags.emplace_back("k" + std::to_string(i), std::nullopt);
  EXPECT_TRUE(repository_->annotate(kFirst, removals)) << "none of them was there";
  removals.tags.emplace_back("one more", std::nullopt);
  EXPECT_EQ(repository_->annotate(kFirst, removals).error().code(), Code::out_of_space);
}

TEST_F(Annotate, AQualityThatIsNotANumberIsRefusedBeforeAndAfterThePut) {
  put_one();
  const double not_a_number = std::numeric_limits<double>::quiet_NaN();
  const Status said = repository_->annotate(kFirst, {.sets_quality = true, .quality = not_a_number});
  EXPECT_EQ(said.error().code(), Code::invalid_argument);
  const TestVersion other = make_version("net", test_id(99), architecture_, nullptr, {}, random_);
  EXPECT_EQ(put(*repository_, other, {.quality = not_a_number}).error().code(), Code::invalid_argument);
  EXPECT_EQ(repository_->stat()->versions, 1U);
  EXPECT_EQ(repository_->get(kFirst)->quality, 0.5);
}

TEST_F(Annotate, ABatchThatFailedSaysNothing) {
  put_one();
  fault_->next = Fault::before;
  EXPECT_FALSE(repository_->annotate(kFirst, {.sets_quality = true, .quality = 9}));
  EXPECT_EQ(repository_->get(kFirst)->quality, 0.5);
  EXPECT_EQ(quality_by_match(), 0.5);
  put_one();
  EXPECT_EQ(repository_->get(kFirst)->quality, 0.5);
  expect_sound();
}

TEST_F(Annotate, OneWhoseAnswerWasLostIsSeenByTheNextWrite) {
  put_one();
  fault_->next = Fault::after;
  EXPECT_FALSE(repository_->annotate(kFirst, {.sets_quality = true, .quality = 9, .tags = {{"k", "v"}}}));
  put_one();  // Reads the catalog anew.
  EXPECT_EQ(repository_->get(kFirst)->quality, 9);
  EXPECT_EQ(quality_by_match(), 9) << "the index goes by the catalog";
  EXPECT_EQ(repository_->match({.graph = MatchGraph::of(*architecture_), .tags = {{"k", "v"}}})->top.size(), 1u);
  expect_sound();
}

}  // namespace
}  // namespace freshet
