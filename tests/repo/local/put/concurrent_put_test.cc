// SPDX-License-Identifier: Apache-2.0
/// Puts at the same time: each is whole, numbers are given once, small ones share a batch, and what one of them writes
/// is left alone by the others and by whoever tidies up.

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <set>
#include <thread>

#include "repo/backend/backend_wrapper.h"
#include "tests/fault/fault_backend.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/this_build.h"

namespace freshet {
namespace {

/// Passes everything on, and tells how many versions each batch made. So that puts meet: blobs are there only when as
/// many puts have begun as it was told, and a batch waits for whoever writes blobs at that moment.
class CountingBackend final : public BackendWrapper {
 public:
  using BackendWrapper::BackendWrapper;
  std::size_t largest_group() const { return largest_; }
  void await_puts(std::size_t count) { awaited_ = count; }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_ASSIGN(std::unique_ptr<BlobWriter> writer, inner().write_blobs());
    ++writing_;
    ++begun_;
    return std::make_unique<Writer>(std::move(writer), *this);
  }
  Status apply(const Batch& batch) override {
    std::size_t versions = 0;
    for (const auto& change : batch) {
      const auto* put = std::get_if<Put>(&change);
      if (put != nullptr && put->key.starts_with("v/")) ++versions;
    }
    if (versions > largest_) largest_ = versions;
    EXPECT_TRUE(came_true([this] { return writing_ == 0; }));
    return inner().apply(batch);
  }

 private:
  class Writer final : public BlobWriter {
   public:
    Writer(std::unique_ptr<BlobWriter> inner, CountingBackend& counting)
        : inner_(std::move(inner)), counting_(counting) {}
    ~Writer() override { --counting_.writing_; }
    Status write(std::string_view key, Bytes bytes) override { return inner_->write(key, bytes); }
    Status commit() override {
      EXPECT_TRUE(came_true([this] { return counting_.begun_ >= counting_.awaited_; }));
      return inner_->commit();
    }

   private:
    const std::unique_ptr<BlobWriter> inner_;
    CountingBackend& counting_;
  };

  std::atomic<std::size_t> largest_{0};
  std::atomic<std::size_t> awaited_{0};
  std::atomic<std::size_t> begun_{0};
  std::atomic<int> writing_{0};
};

constexpr std::size_t kThreads = 6;

std::vector<TestVersion> make_versions(std::size_t count, std::uint64_t run, const std::string& model) {
  std::mt19937_64 random(run);
  const auto architecture = test_architecture({1000, 70, 30'000});
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 0; i < count; ++i) {
    const TestVersion* base = i % 3 == 0 ? nullptr : &versions.back();
    versions.push_back(make_version(model, test_id(i + 1, run), architecture, base, {0, 2}, random));
  }
  return versions;
}

void run_together(const std::function<void(std::size_t thread)>& work) {
  std::latch together(kThreads);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      together.arrive_and_wait();
      work(i);
    });
  }
}

class ConcurrentPut : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Backend> open_backend() {
    if (GetParam() == std::string("memory")) return make_memory_backend();
    auto opened = open_rocks_backend({.folder = folder_ / "store"});
    FRESHET_CHECK(opened.has_value());
    return std::move(*opened);
  }
  TemporaryFolder folder_;
};

TEST_P(ConcurrentPut, EachIsWholeAndHasANumberOfItsOwn) {
  constexpr std::size_t kPuts = 8;
  const auto repository = open_or_die(open_backend());
  std::vector<std::vector<TestVersion>> versions;
  for (std::size_t i = 0; i < kThreads; ++i) versions.push_back(make_versions(kPuts, i + 1, "net"));
  std::vector<std::vector<VersionNumber>> numbers(kThreads, std::vector<VersionNumber>(kPuts));
  run_together([&](std::size_t thread) {
    for (std::size_t i = 0; i < kPuts; ++i) {
      const auto name = put(*repository, versions[thread][i]);
      if (name) numbers[thread][i] = name->number;
    }
  });
  std::set<VersionNumber> given;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    for (std::size_t i = 0; i < kPuts; ++i) {
      const VersionNumber number = numbers[thread][i];
      EXPECT_TRUE(given.insert(number).second) << number;
      EXPECT_EQ(read_all(*repository, {.model = "net", .number = number}).value(), versions[thread][i].bytes);
    }
  }
  EXPECT_EQ(*given.begin(), 1u);
  EXPECT_EQ(*given.rbegin(), kThreads * kPuts);
  EXPECT_TRUE(repository->verify(std::nullopt, {})->corrupt.empty());
}

TEST_P(ConcurrentPut, SmallOnesShareABatch) {
  constexpr std::size_t kRounds = 300;
  auto counting = std::make_unique<CountingBackend>(open_backend());
  CountingBackend& backend = *counting;
  const auto repository = open_or_die(std::move(counting));
  std::vector<std::vector<TestVersion>> versions;
  for (std::size_t i = 0; i < kThreads; ++i) versions.push_back(make_versions(kRounds, i + 1, "m" + std::to_string(i)));
  for (std::size_t round = 0; round < kRounds && backend.largest_group() < 2; ++round) {
    backend.await_puts((round + 1) * kThreads);
    run_together([&](std::size_t thread) { EXPECT_TRUE(put(*repository, versions[thread][round])); });
  }
  EXPECT_GE(backend.largest_group(), 2u);
}

TEST_P(ConcurrentPut, TheSameVersionIsStoredOnce) {
  const auto repository = open_or_die(open_backend());
  const auto versions = make_versions(1, 7, "net");
  std::atomic<int> stored{0};
  std::atomic<int> refused{0};
  run_together([&](std::size_t) {
    const auto name = put(*repository, versions[0]);
    if (name) ++stored;
    if (!name && name.error().code() == Code::already_exists) ++refused;
  });
  EXPECT_EQ(stored, 1);
  EXPECT_EQ(refused, static_cast<int>(kThreads) - 1);
}

TEST_P(ConcurrentPut, ASegmentThatSeveralBringIsStoredOnce) {
  const auto repository = open_or_die(open_backend());
  std::mt19937_64 random(3);
  const auto architecture = test_architecture({5000, 6'000'000});
  const TestVersion parent = make_version("net", test_id(1), architecture, nullptr, {}, random);
  std::vector<TestVersion> children;
  for (std::size_t i = 0; i < kThreads; ++i) {
    children.push_back(make_version("net", test_id(i + 2), architecture, &parent, {0}, random));
  }
  std::atomic<int> asked{0};
  run_together([&](std::size_t thread) {
    const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
      if (tensor == 1) ++asked;
      return Bytes(children[thread].bytes[tensor]);
    };
    EXPECT_TRUE(repository->put(children[thread].manifest, bytes_of, {}));
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(repository->stat()->live_tensors, kThreads + 1);
}

// The first put that fails must not take down, or have tidied away, what the others are writing.
TEST_P(ConcurrentPut, AFailureIsNobodyElses) {
  constexpr std::size_t kPuts = 4;
  auto inner = std::shared_ptr<Backend>(open_backend());
  for (std::uint64_t at = 2; at < 40; at += test::under_sanitizer() ? 9 : 3) {
    const auto code = at % 2 == 0 ? FaultBackend::Fault::fail_once : FaultBackend::Fault::fail_until_recovered;
    auto faulty = std::make_unique<FaultBackend>(inner, FaultBackend::Plan{.fault = code, .at = at});
    const auto repository = open_or_die(std::move(faulty));
    const std::string model = "net" + std::to_string(at);
    std::vector<std::vector<TestVersion>> versions;
    for (std::size_t i = 0; i < kThreads; ++i) versions.push_back(make_versions(kPuts, 100 * at + i, model));
    run_together([&](std::size_t thread) {
      for (const TestVersion& version : versions[thread]) {
        int attempts = 0;
        while (!put(*repository, version) && ++attempts < 100) {
        }
        EXPECT_LT(attempts, 100);
      }
    });
    const auto rows = repository->versions(model).value();
    EXPECT_EQ(rows.size(), kThreads * kPuts);
    for (const LineageRow& row : rows) EXPECT_TRUE(read_all(*repository, row.version));
  }
  // What the failed ones left goes when the repository is opened.
  const auto repository = open_or_die(std::make_unique<FaultBackend>(inner, FaultBackend::Plan{}));
  std::size_t blobs = 0;
  ASSERT_TRUE(inner->list_blobs([&](std::string_view, std::uint64_t) { return ++blobs > 0; }));
  EXPECT_EQ(blobs, repository->stat()->live_tensors);
}

INSTANTIATE_TEST_SUITE_P(Backends, ConcurrentPut, testing::Values("memory", "rocksdb"),
                         [](const auto& about) { return std::string(about.param); });

}  // namespace
}  // namespace freshet
