// SPDX-License-Identifier: Apache-2.0
/// A fault at every write call of a put, one after the other: after it the repository is as before, or has the whole
/// new version, and nothing is left over.

#include <gtest/gtest.h>

#include "repo/bucket/bucket_backend.h"
#include "repo/object_store/memory_object_store.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

using Fault = FaultBackend::Fault;

/// Counts how far a sweep went.
constexpr std::uint64_t kCallsMax = 1000;

class RepositoryFault : public testing::TestWithParam<const char*> {
 protected:
  RepositoryFault() {
    std::mt19937_64 random(5);
    const auto architecture = test_architecture({500, 40, 2'000'000, 3'000'000});
    first_ = make_version("net", test_id(1), architecture, nullptr, {}, random);
    first_.manifest.name.number = 1;
    second_ = make_version("net", test_id(2), architecture, &first_, {0, 2, 3}, random);
  }

  // An empty store; the sweep makes one for every step.
  std::shared_ptr<Backend> make_inner() {
    inner_.reset();
    if (GetParam() == std::string("memory")) return inner_ = make_memory_backend();
    objects_ = std::make_shared<MemoryObjectStore>();
    folder_ = std::make_unique<TemporaryFolder>();
    return inner_ = open_again();
  }

  std::shared_ptr<Backend> open_again() {
    BucketOptions bucket;
    bucket.check_exclusion = false;
    auto opened = GetParam() == std::string("bucket") ? open_bucket_backend(objects_, bucket)
                                                      : open_rocks_backend({.folder = *folder_ / "store"});
    FRESHET_CHECK(opened.has_value());
    return std::move(*opened);
  }

  // As a restarted process finds it.
  std::unique_ptr<ProviderRepository> reopen() {
    if (GetParam() != std::string("memory")) {
      inner_.reset();
      inner_ = open_again();
    }
    return open_or_die(std::make_unique<FaultBackend>(inner_, FaultBackend::Plan{}));
  }

  std::size_t blob_count() const {
    std::size_t count = 0;
    EXPECT_TRUE(inner_->list_blobs([&](std::string_view, std::uint64_t) { return ++count > 0; }));
    return count;
  }

  // Whole old or whole new, and nothing else.
  void expect_whole(const Repository& repository, bool must_have_second) {
    const auto versions = repository.versions("net");
    ASSERT_TRUE(versions);
    EXPECT_GE(versions->size(), must_have_second ? 2u : 1u);
    EXPECT_EQ(read_all(repository, {.model = "net", .number = 1}).value(), first_.bytes);
    if (versions->size() == 2) {
      EXPECT_EQ(read_all(repository, {.model = "net", .number = 2}).value(), second_.bytes);
    }
    EXPECT_EQ(blob_count(), repository.stat()->live_tensors);
    EXPECT_EQ(repository.stat()->live_tensors, versions->size() == 2 ? 7u : 4u);
    EXPECT_TRUE(repository.verify(std::nullopt, {})->corrupt.empty());
  }

  std::unique_ptr<TemporaryFolder> folder_;
  std::shared_ptr<MemoryObjectStore> objects_;
  std::shared_ptr<Backend> inner_;
  TestVersion first_;
  TestVersion second_;
};

TEST_P(RepositoryFault, ACrashAtAnyCallLeavesWholeVersions) {
  for (const Fault fault : {Fault::crash_before, Fault::crash_midway, Fault::crash_after}) {
    std::uint64_t at = 1;
    for (; at < kCallsMax; ++at) {
      SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " at call " + std::to_string(at));
      auto backend = std::make_unique<FaultBackend>(make_inner(), FaultBackend::Plan{});
      FaultBackend& faults = *backend;
      auto repository = open_or_die(std::move(backend));
      ASSERT_TRUE(put(*repository, first_));
      faults.set_plan({.fault = fault, .at = at});
      const auto name = put(*repository, second_);
      const bool crashed = faults.crashed();
      EXPECT_NE(crashed, name.has_value());
      repository.reset();
      const auto after = reopen();
      expect_whole(*after, name.has_value());
      if (HasFatalFailure()) return;
      const auto again = put(*after, second_);
      EXPECT_TRUE(again || again.error().code() == Code::already_exists);
      expect_whole(*after, true);
      if (!crashed) break;
    }
    EXPECT_GE(at, 5u);  // Three blobs, their commit, the batch.
    EXPECT_LT(at, kCallsMax);
  }
}

TEST_P(RepositoryFault, AfterAnErrorAtAnyCallTheNextPutWorks) {
  for (const Fault fault : {Fault::fail_once, Fault::fail_until_recovered}) {
    std::uint64_t at = 1;
    for (; at < kCallsMax; ++at) {
      SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " at call " + std::to_string(at));
      auto backend = std::make_unique<FaultBackend>(make_inner(), FaultBackend::Plan{});
      FaultBackend& faults = *backend;
      const auto repository = open_or_die(std::move(backend));
      ASSERT_TRUE(put(*repository, first_));
      faults.set_plan({.fault = fault, .at = at});
      const auto name = put(*repository, second_);
      if (name) break;
      EXPECT_EQ(name.error().code(), Code::out_of_space);
      EXPECT_EQ(repository->latest("net").value(), 1u);
      EXPECT_EQ(read_all(*repository, {.model = "net"}).value(), first_.bytes);
      const auto again = put(*repository, second_);
      EXPECT_TRUE(again) << again.error().message();
      expect_whole(*repository, true);
      if (HasFatalFailure()) return;
    }
    EXPECT_GE(at, 5u);
  }
}

TEST_P(RepositoryFault, ACrashWhileCleaningUpIsCleanedUpToo) {
  for (std::uint64_t at = 1; at < kCallsMax; ++at) {
    SCOPED_TRACE("crash at call " + std::to_string(at));
    auto backend = std::make_unique<FaultBackend>(make_inner(), FaultBackend::Plan{});
    FaultBackend& faults = *backend;
    auto repository = open_or_die(std::move(backend));
    ASSERT_TRUE(put(*repository, first_));
    faults.set_plan({.fault = Fault::crash_after, .at = 4});  // All blobs are committed, and no version names them.
    EXPECT_FALSE(put(*repository, second_));
    repository.reset();
    EXPECT_EQ(blob_count(), 7u);
    auto crashing = Repository::open(
        std::make_unique<FaultBackend>(inner_, FaultBackend::Plan{.fault = Fault::crash_before, .at = at}), {});
    const bool crashed = !crashing;
    crashing = fail(Code::cancelled, "closed");
    expect_whole(*reopen(), false);
    if (!crashed) {
      EXPECT_GE(at, 4u);
      return;
    }
  }
}

TEST_P(RepositoryFault, ACrashAtAnyCallOfRetireAndGcIsFinishedByTheNext) {
  for (const Fault fault : {Fault::crash_before, Fault::crash_after, Fault::fail_once, Fault::fail_until_recovered}) {
    std::uint64_t at = 1;
    for (; at < kCallsMax; ++at) {
      SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " at call " + std::to_string(at));
      auto backend = std::make_unique<FaultBackend>(make_inner(), FaultBackend::Plan{});
      FaultBackend& faults = *backend;
      auto repository = open_or_die(std::move(backend));
      ASSERT_TRUE(put(*repository, first_));
      ASSERT_TRUE(put(*repository, second_));
      faults.set_plan({.fault = fault, .at = at});
      const auto retired = repository->retire({.model = "net", .number = 1}, {});
      const auto collected = repository->gc({}, {});
      const bool struck = !retired || !collected;
      if (faults.crashed()) {
        repository.reset();
        repository = reopen();
      } else {
        faults.set_plan({});
      }
      EXPECT_EQ(read_all(*repository, {.model = "net", .number = 2}).value(), second_.bytes);
      const auto old = read_all(*repository, {.model = "net", .number = 1});
      EXPECT_FALSE(retired && old);
      if (old) {
        EXPECT_EQ(*old, first_.bytes);
        EXPECT_EQ(repository->stat()->live_tensors, 7u);
      }
      const auto again = repository->retire({.model = "net", .number = 1}, {});
      EXPECT_EQ(again.has_value(), old.has_value());
      ASSERT_TRUE(repository->gc({}, {}));
      EXPECT_EQ(repository->stat()->live_tensors, 4u);
      EXPECT_EQ(blob_count(), 4u);
      EXPECT_TRUE(repository->verify(std::nullopt, {})->corrupt.empty());
      EXPECT_EQ(read_all(*repository, {.model = "net", .number = 2}).value(), second_.bytes);
      EXPECT_EQ(repository->lineage({.model = "net", .number = 2})->size(), 2u);
      if (HasFailure()) return;
      if (!struck) break;
    }
    EXPECT_GE(at, 5u);  // The batch, three blobs, and the space given back.
    EXPECT_LT(at, kCallsMax);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RepositoryFault, testing::Values("memory", "rocksdb", "bucket"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace freshet
