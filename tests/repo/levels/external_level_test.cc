// SPDX-License-Identifier: Apache-2.0
/// What the level `external` inherits from the newest version of a repository that others use, too.

#include "repo/levels/external_level.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>

#include "repo/backend/backend.h"
#include "repo/backend/backend_wrapper.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/job_catalog.h"
#include "repo/levels/resting.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/support/refused.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr auto kWithinMinute = std::chrono::minutes(1);

/// One of its scans fails when it is told so. It counts the readings of tensors together.
class SilentOnce final : public BackendWrapper {
 public:
  SilentOnce() : BackendWrapper(make_memory_backend()) {}
  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    if (is_silent.exchange(false)) return fail(Code::unavailable, "the backend does not answer");
    return BackendWrapper::scan(prefix, each);
  }
  Result<std::vector<std::optional<Digest>>> read_neighbours(std::span<const WholeRead> reads) const override {
    ++readings;
    return BackendWrapper::read_neighbours(reads);
  }
  mutable std::atomic<bool> is_silent = false;
  mutable std::atomic<int> readings = 0;
};

/// Lives of a job of one rank, with one repository.
class ExternalLevel : public testing::Test {
 protected:
  /// A life of the job.
  std::unique_ptr<Checkpointer> begin() {
    Checkpointer::Options options = test::alone(folder_.path());
    options.external = [this]() -> Result<std::shared_ptr<Repository>> { return repository_; };
    auto opened = Checkpointer::open(std::move(options), test::three_tensors());
    if (!opened || !(*opened)->restore(writable_)) return nullptr;
    return *std::move(opened);
  }
  /// How the level ended of a version with `changed` alone changed.
  Status store(Checkpointer& checkpointer, int step, std::size_t changed) {
    std::ranges::fill(memory_.held[changed], static_cast<std::byte>(step));
    FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(static_cast<std::uint64_t>(step), memory_.views()));
    return checkpointer.wait(captured.version, CheckpointLevel::external, kWithinMinute);
  }
  /// Of the newest version in the repository.
  VersionName ancestor() const { return repository_->get({"net", 0})->manifest.ancestor_name; }
  void expect_whole() const {
    const auto record = repository_->get({"net", 0});
    ASSERT_TRUE(record);
    const auto specs = record->manifest.architecture->tensors();
    for (std::uint32_t tensor = 0; tensor < specs.size(); ++tensor) {
      std::vector<std::byte> bytes(specs[tensor].bytes());
      const Repository::TensorRead read{.tensor = tensor, .out = bytes};
      ASSERT_TRUE(repository_->read(*record, std::span(&read, 1)));
      EXPECT_EQ(std::ranges::count(memory_.held, bytes), 1) << specs[tensor].name;
    }
  }

  const TemporaryFolder folder_;
  SilentOnce* const backend_ = new SilentOnce;
  const std::shared_ptr<Repository> repository_{*Repository::open(std::unique_ptr<Backend>(backend_), {})};
  test::HeldMemory memory_{1, 0};
  const std::vector<MutableBytes> writable_ = memory_.writable();
};

TEST_F(ExternalLevel, ARepositoryThatIsSilentOnceIsAskedAgainForItsNewestVersion) {
  {
    const auto checkpointer = begin();
    ASSERT_TRUE(checkpointer);
    ASSERT_TRUE(store(*checkpointer, 1, 0));
    ASSERT_TRUE(checkpointer->finish(kWithinMinute));
  }
  const auto checkpointer = begin();
  ASSERT_TRUE(checkpointer);
  backend_->is_silent = true;
  EXPECT_TRUE(is_refused(store(*checkpointer, 2, 0), Code::unavailable));
  ASSERT_TRUE(store(*checkpointer, 3, 0));
  EXPECT_EQ(ancestor(), (VersionName{"net", 1}));
  EXPECT_EQ(repository_->get({"net", 0})->inherited_bytes, memory_.held[1].size() + memory_.held[2].size());
  expect_whole();
}

TEST_F(ExternalLevel, AVersionThatSomebodyRetiredIsNoAncestor) {
  const auto checkpointer = begin();
  ASSERT_TRUE(checkpointer);
  ASSERT_TRUE(store(*checkpointer, 1, 0));
  ASSERT_TRUE(store(*checkpointer, 2, 1));
  ASSERT_TRUE(repository_->retire({"net", 2}, {}));
  ASSERT_TRUE(repository_->gc({}, {}));
  const Status stored = store(*checkpointer, 3, 0);
  ASSERT_TRUE(stored) << stored.error().message();
  EXPECT_EQ(ancestor(), (VersionName{"net", 1}));
  expect_whole();
  ASSERT_TRUE(repository_->retire({"net", 1}, {}));
  ASSERT_TRUE(repository_->retire({"net", 3}, {}));
  ASSERT_TRUE(store(*checkpointer, 4, 0)) << "none is left";
  expect_whole();
}

/// A store far away has many requests at once, if it is asked for all tensors together.
TEST_F(ExternalLevel, AVersionIsTakenOutOfTheRepositoryWithOneReading) {
  const auto checkpointer = begin();
  ASSERT_TRUE(checkpointer);
  ASSERT_TRUE(store(*checkpointer, 1, 0));
  const auto resting = levels::RestingCheckpoints::open({}, repository_, "net");
  ASSERT_TRUE(resting) << resting.error().message();
  backend_->readings = 0;
  const auto whole = resting->get({});
  ASSERT_TRUE(whole) << whole.error().message();
  EXPECT_EQ(backend_->readings, 1);
  EXPECT_EQ(whole->from, CheckpointLevel::external);
  ASSERT_EQ(whole->bytes.size(), memory_.held.size());
  for (const auto& bytes : memory_.held) EXPECT_EQ(std::ranges::count(whole->bytes, bytes), 1);
}

/// Also in the folders of a job that went on from the repository, each tensor's owner has its number.
TEST_F(ExternalLevel, WritersAreKnownByNumberAfterARestartFromTheRepository) {
  {
    const auto checkpointer = begin();
    ASSERT_TRUE(checkpointer);
    ASSERT_TRUE(store(*checkpointer, 1, 1));
    ASSERT_TRUE(store(*checkpointer, 2, 0));
    ASSERT_TRUE(checkpointer->finish(kWithinMinute));
  }
  std::filesystem::remove_all(folder_ / "net");
  const auto checkpointer = begin();
  ASSERT_TRUE(checkpointer);
  ASSERT_TRUE(store(*checkpointer, 3, 0));
  const auto catalog = levels::JobCatalog::open({folder_.path()});
  ASSERT_TRUE(catalog) << catalog.error().message();
  const auto in_folder = (*catalog)->owners({"net", 3});
  const auto stored = repository_->owners({"net", 3});
  ASSERT_TRUE(in_folder && stored);
  ASSERT_EQ(in_folder->size(), stored->size());
  for (std::size_t i = 0; i < stored->size(); ++i) {
    EXPECT_EQ(in_folder->at(i).tensor, stored->at(i).tensor);
    EXPECT_EQ(in_folder->at(i).owner, stored->at(i).owner) << stored->at(i).tensor;
  }
}

}  // namespace
}  // namespace freshet
