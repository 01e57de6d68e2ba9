// SPDX-License-Identifier: Apache-2.0
/// The match index is made while the repository goes on: nobody waits for the other, and nothing is missed.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <iostream>
#include <thread>

#include "core/base/mutex.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/records/records.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

/// Opened once; a wait that nobody ends is given up, so that a fault fails the test instead of holding it up.
class Gate {
 public:
  void open() {
    const MutexLock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  bool wait() {
    const Time until = system_clock().now() + std::chrono::seconds(20);
    const MutexLock lock(mutex_);
    while (!is_open_) {
      if (!opened_.wait_until(mutex_, until)) return is_open_;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool is_open_ FRESHET_GUARDED_BY(mutex_) = false;
};

struct HeldUp : BackendWrapper {
  explicit HeldUp(std::unique_ptr<Backend> inner) : BackendWrapper(std::move(inner)) {}
  Result<std::string> get(std::string_view key) const override {
    if (before_get) before_get(key);
    return BackendWrapper::get(key);
  }
  Status erase_blob(std::string_view key) override {
    if (before_erase) before_erase();
    return BackendWrapper::erase_blob(key);
  }
  std::function<void(std::string_view key)> before_get;
  std::function<void()> before_erase;
};

class LateIndexOfARepository : public testing::Test {
 protected:
  void SetUp() override {
    std::cout << "seed 31\n";
    const auto repository = open_or_die(backend());
    for (std::uint64_t i = 1; i <= 6; ++i) {
      versions_.push_back(version("m" + std::to_string(i), i, {i, 7, 50 + i}));
      ASSERT_TRUE(put(*repository, versions_.back()));
    }
    ASSERT_TRUE(repository->retire({.model = "m1", .number = 1}, {}));
  }
  std::unique_ptr<Backend> backend() {
    auto backend = open_rocks_backend({.folder = folder_.path()});
    FRESHET_CHECK(backend.has_value());
    return *std::move(backend);
  }
  TestVersion version(const std::string& model, std::uint64_t id, const std::vector<std::uint64_t>& tensors) {
    return make_version(model, test_id(id), test_architecture(tensors), nullptr, {}, random_);
  }
  static MatchQuery query_for(const TestVersion& version) {
    MatchQuery query;
    query.graph = MatchGraph::of(*version.manifest.architecture);
    return query;
  }
  static std::string best(Repository& repository, const MatchQuery& query) {
    const auto answer = repository.match(query);
    if (!answer) return answer.error().message();
    return answer->top.empty() ? "nothing" : answer->top[0].version.model;
  }

  const TemporaryFolder folder_;
  std::mt19937_64 random_{31};
  std::vector<TestVersion> versions_;
};

TEST_F(LateIndexOfARepository, TheFirstMatchDoesNotWaitForGc) {
  Gate gc_runs;
  Gate matched;
  bool waited = false;
  auto held_up = std::make_unique<HeldUp>(backend());
  held_up->before_erase = [&] {
    gc_runs.open();
    waited = !matched.wait();
  };
  const auto repository = open_or_die(std::move(held_up));
  ASSERT_TRUE(repository->retire({.model = "m2", .number = 1}, {}));
  std::thread gc([&] { EXPECT_TRUE(repository->gc({}, {})); });
  EXPECT_TRUE(gc_runs.wait());
  EXPECT_EQ(best(*repository, query_for(versions_[4])), "m5");
  matched.open();
  gc.join();
  EXPECT_FALSE(waited) << "the match answered when gc had ended";
}

TEST_F(LateIndexOfARepository, WhatChangesWhileItIsMadeIsInIt) {
  std::filesystem::remove(folder_ / "derived-graphs");  // So that the architectures are read.
  Gate is_made;
  Gate changed;
  std::atomic<bool> first = true;
  bool waited = false;
  auto held_up = std::make_unique<HeldUp>(backend());
  held_up->before_get = [&](std::string_view key) {
    if (key != architecture_key(versions_[3].manifest.architecture->digest()) || !first.exchange(false)) return;
    is_made.open();
    waited = !changed.wait();
  };
  const auto repository = open_or_die(std::move(held_up));
  std::thread match([&] { EXPECT_EQ(best(*repository, query_for(versions_[4])), "m5"); });
  EXPECT_TRUE(is_made.wait());
  const TestVersion late = version("late", 100, {90, 91});
  const TestVersion brief = version("brief", 101, {93, 94});
  EXPECT_TRUE(put(*repository, late));
  EXPECT_TRUE(put(*repository, brief));
  EXPECT_TRUE(repository->retire({.model = "brief", .number = 1}, {}));
  EXPECT_TRUE(repository->retire({.model = "m3", .number = 1}, {}));
  EXPECT_TRUE(repository->annotate({.model = "m2", .number = 1}, {.sets_quality = true, .quality = 0.75, .tags = {}}));
  EXPECT_TRUE(repository->annotate({.model = "m6", .number = 1}, {.sets_quality = true, .quality = 0.5, .tags = {}}));
  changed.open();
  match.join();
  EXPECT_FALSE(waited) << "a change waited for the index";
  EXPECT_EQ(best(*repository, query_for(late)), "late");
  EXPECT_NE(best(*repository, query_for(brief)), "brief");
  EXPECT_NE(best(*repository, query_for(versions_[2])), "m3");
  EXPECT_NE(best(*repository, query_for(versions_[0])), "m1");
  for (const auto& [at, quality] : {std::pair(1, 0.75), std::pair(5, 0.5)}) {
    const auto answer = repository->match(query_for(versions_[at]));
    ASSERT_TRUE(answer);
    ASSERT_FALSE(answer->top.empty());
    EXPECT_EQ(answer->top[0].version.model, versions_[at].manifest.name.model);
    EXPECT_EQ(answer->top[0].quality, quality);
    EXPECT_GE(answer->as_of, 12U);
  }
}

}  // namespace
}  // namespace freshet
