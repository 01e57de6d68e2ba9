// SPDX-License-Identifier: Apache-2.0
/// Levels and peers that are slow: slow is neither dead nor damaged, and costs no memory. Levels that fail cost their
/// versions alone, and the program is told.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <future>
#include <set>

#include "core/base/format.h"
#include "repo/backend/backend.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/restart/assembly.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/repo/levels/support/refusing_disk.h"
#include "tests/support/log_lines_with.h"
#include "tests/support/temporary_folder.h"

namespace freshet::behind {
namespace {

using test::alone;
using test::HeldMemory;

constexpr auto kLong = std::chrono::seconds(60);

/// A share of which four fill the memory that a rank may take.
std::vector<LaidTensor> one_large() {
  return {{.spec = {.name = "large", .dtype = DType::u8, .shape = {17 << 20}}, .layout = {}}};
}

/// Holds up whoever comes first to a point, until it is opened.
class Gate {
 public:
  explicit Gate(std::string point) : point_(std::move(point)) {}
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }
  std::function<void(std::string_view, std::uint64_t)> hook() {
    return [this](std::string_view point, std::uint64_t step) {
      if (point == point_ && step == 1) wait_.wait();
    };
  }

 private:
  const std::string point_;
  bool is_open_ = false;
  std::promise<void> opened_;
  std::shared_future<void> wait_ = opened_.get_future().share();
};

std::unique_ptr<Checkpointer> begun(Checkpointer::Options options, const std::vector<LaidTensor>& tensors,
                                    HeldMemory& memory) {
  auto opened = Checkpointer::open(std::move(options), tensors);
  if (!opened) return nullptr;
  const auto writable = memory.writable();
  if (!(*opened)->restore(writable)) return nullptr;
  return *std::move(opened);
}

TEST(CheckpointsBehind, ASlowDiskCostsTheOlderVersionsAndNoMemory) {
  const TemporaryFolder folder;
  HeldMemory memory(1, 0, one_large());
  const test::LogLinesWith log("did not reach");
  Gate disk("local_half");
  auto options = alone(folder.path());
  options.at_point = disk.hook();
  const auto checkpointer = begun(options, one_large(), memory);
  ASSERT_TRUE(checkpointer);
  for (int step = 1; step <= 9; ++step) {
    memory.fill(step);
    const auto captured = checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views());
    ASSERT_TRUE(captured) << "step " << step << ": " << captured.error().message();
    // The loop is never faster here than its own notes.
    ASSERT_TRUE(checkpointer->wait(captured->version, CheckpointLevel::memory, kLong));
    if (step < 3) continue;
    const Status passed = checkpointer->wait(captured->version - 1, CheckpointLevel::local, kLong);
    ASSERT_FALSE(passed);
    EXPECT_NE(passed.error().message().find(format("passed over by version {}", captured->version)), std::string::npos)
        << passed.error().message();
  }
  disk.open();
  EXPECT_TRUE(checkpointer->wait(9, CheckpointLevel::local, kLong));
  EXPECT_TRUE(checkpointer->finish(kLong));
  EXPECT_TRUE(checkpointer->check_stored());
  EXPECT_EQ(log.count(), 0) << "it is what the job asked for";
}

TEST(CheckpointsBehind, ASlowRepositoryLeavesNoMoreShardsInTheFolderThanItNeeds) {
  const TemporaryFolder folder;
  HeldMemory memory(1, 0);
  Gate repository("external_half");
  auto options = alone(folder.path());
  options.at_point = repository.hook();
  const auto stored = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  options.external = [&]() -> Result<std::shared_ptr<Repository>> { return stored; };
  const auto checkpointer = begun(options, test::three_tensors(), memory);
  ASSERT_TRUE(checkpointer);
  for (int step = 1; step <= 20; ++step) {
    memory.fill(step);
    const auto captured = checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views());
    ASSERT_TRUE(captured);
    ASSERT_TRUE(checkpointer->wait(captured->version, CheckpointLevel::local, kLong));
  }
  // What is told of one version comes after the folder was cleaned for the one before.
  const auto last = checkpointer->checkpoint(21, memory.views());
  ASSERT_TRUE(last && checkpointer->wait(last->version, CheckpointLevel::memory, kLong));
  std::set<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "net")) {
    if (entry.path().extension() == ".shard") shards.insert(entry.path().filename().string());
  }
  // The one on its way to the repository, the one that waits for it, two that are kept, and two of the last step.
  EXPECT_LE(shards.size(), 6U);
  repository.open();
  EXPECT_TRUE(checkpointer->finish(kLong));
  const auto newest = stored->get({"net", 0});
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->manifest.step, 21U);
}

/// The loop waits longer than anybody's patience, and goes on when the level does.
TEST(CheckpointsBehind, WithWaitTheLoopWaitsAsLongAsItTakes) {
  const TemporaryFolder folder;
  HeldMemory memory(1, 0);
  Gate disk("local_half");
  auto options = alone(folder.path());
  options.at_point = disk.hook();
  options.when_behind = levels::WhenBehind::wait;
  options.patience = std::chrono::milliseconds(5);
  const auto checkpointer = begun(options, test::three_tensors(), memory);
  ASSERT_TRUE(checkpointer);
  for (int step = 1; step <= 2; ++step) {
    auto captured = std::async(
        std::launch::async, [&] { return checkpointer->checkpoint(static_cast<std::uint64_t>(step), memory.views()); });
    if (step == 2) {
      EXPECT_EQ(captured.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
      disk.open();
    }
    const auto ended = captured.get();
    ASSERT_TRUE(ended) << "step " << step << ": " << ended.error().message();
  }
  EXPECT_TRUE(checkpointer->wait(2, CheckpointLevel::local, kLong));
  EXPECT_TRUE(checkpointer->finish(kLong));
}

/// The job's folder, where one thing is not answered in time.
class SilentSource final : public levels::ShardSource {
 public:
  enum class Silent { head, table, read };
  SilentSource(const levels::ShardFolders& folders, Silent silent) : folders_(folders), silent_(silent) {}
  Bytes head(const levels::Holder& holder, std::uint32_t ranks) override {
    if (silent_ == Silent::head) return late();
    return folders_.head(holder, ranks);
  }
  Bytes table(std::uint32_t holder, const Digest& digest) override {
    if (silent_ == Silent::table) return late();
    return folders_.table(holder, digest);
  }
  std::unique_ptr<Pending> read(const levels::Holder& holder, std::uint32_t ranks,
                                std::vector<levels::ByteRange> ranges) override {
    struct Late final : Pending {
      Bytes wait() override { return late(); }
    };
    if (silent_ == Silent::read) return std::make_unique<Late>();
    return folders_.read(holder, ranks, std::move(ranges));
  }

 private:
  static Bytes late() { return fail(Code::timed_out, "rank 1 did not answer in time"); }
  levels::FolderSource folders_;
  const Silent silent_;
};

TEST(CheckpointsBehind, AShardThatDoesNotComeInTimeIsNotDamaged) {
  const TemporaryFolder folder;
  HeldMemory memory(1, 0);
  {
    const auto checkpointer = begun(alone(folder.path()), test::three_tensors(), memory);
    ASSERT_TRUE(checkpointer && checkpointer->checkpoint(1, memory.views()));
    ASSERT_TRUE(checkpointer->finish(kLong));
  }
  const auto folders = levels::ShardFolders::open_to_read({folder.path()}, "net");
  ASSERT_TRUE(folders);
  const auto here = (*folders)->scan();
  ASSERT_EQ(here.size(), 1U);
  const levels::RestartPlan plan{.source = levels::RestartPlan::Source::shards,
                                 .version = here[0].key.version,
                                 .ranks = 1,
                                 .holders = {{here[0].key.version, 0, 0}}};
  std::vector<std::byte> bytes(200'000);
  const levels::WantedPiece wanted{
      .piece = {.tensor = 0, .count = 1, .stride = bytes.size(), .begin = 0, .length = bytes.size()}, .out = bytes};
  for (const auto silent : {SilentSource::Silent::head, SilentSource::Silent::table, SilentSource::Silent::read}) {
    SilentSource source(**folders, silent);
    std::vector<levels::BadShard> bad;
    const auto opened = levels::ShardedVersion::open(source, plan, 0, bad);
    std::optional<Error> error;
    if (!opened) {
      error = opened.error();
    } else if (const auto fetched = opened->fetch(source, std::span(&wanted, 1), bad); !fetched) {
      error = fetched.error();
    }
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Code::timed_out) << error->message();
    EXPECT_TRUE(bad.empty()) << bad.front().why;
  }
}

/// Who takes no events is told by the log: once, and again when the disk took something in between. At the end of the
/// job a call tells of the last version.
TEST(CheckpointsThatFail, ALevelThatFailsIsLoggedOnceUntilItIsReachedAgain) {
  const TemporaryFolder folder;
  test::RefusingDisk disk(".shard");
  HeldMemory memory(1, 0);
  auto options = alone(folder.path());
  options.env = &disk;
  const auto repository = std::shared_ptr<Repository>(*Repository::open(make_memory_backend(), {}));
  options.external = [&]() -> Result<std::shared_ptr<Repository>> { return repository; };
  const test::LogLinesWith log("did not reach");  // At external it was not tried: that is no news.
  const auto opened = Checkpointer::open(options, test::three_tensors());
  ASSERT_TRUE(opened);
  const auto writable = memory.writable();
  ASSERT_TRUE((*opened)->restore(writable));
  EXPECT_TRUE((*opened)->check_stored()) << "there is none";
  int step = 0;
  for (const int lines : {1, 1, 1, 2, 2}) {
    disk.errno_value = ++step == 3 ? 0 : ENOSPC;
    memory.fill(step);
    ASSERT_TRUE((*opened)->checkpoint(static_cast<std::uint64_t>(step), memory.views()));
    ASSERT_TRUE((*opened)->settle(kLong));
    EXPECT_EQ(log.count(), lines) << "step " << step;
    EXPECT_EQ((*opened)->check_stored().has_value(), step == 3);
  }
  EXPECT_FALSE((*opened)->checkpoint(6, {})) << "this one was not captured, and is not the last";
  ASSERT_TRUE((*opened)->finish(kLong));
  const Status stored = (*opened)->check_stored();
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code(), Code::out_of_space);
  EXPECT_NE(stored.error().message().find("version 5, the last one"), std::string::npos) << stored.error().message();
  EXPECT_NE(stored.error().message().find(folder.path()), std::string::npos) << stored.error().message();
}

TEST(CheckpointsThatFail, AFinishedJobTakesNoMoreVersions) {
  const TemporaryFolder folder;
  HeldMemory memory(1, 0);
  const auto opened = Checkpointer::open(alone(folder.path()), test::three_tensors());
  ASSERT_TRUE(opened);
  const auto writable = memory.writable();
  ASSERT_TRUE((*opened)->restore(writable));
  ASSERT_TRUE((*opened)->checkpoint(1, memory.views()));
  ASSERT_TRUE((*opened)->finish(kLong));
  const auto begun = (*opened)->begin(2);
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code(), Code::failed_precondition);
  EXPECT_NE(begun.error().message().find("was finished"), std::string::npos) << begun.error().message();
  EXPECT_TRUE((*opened)->check_stored());
}

}  // namespace
}  // namespace freshet::behind
