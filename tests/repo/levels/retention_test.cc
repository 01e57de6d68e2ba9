// SPDX-License-Identifier: Apache-2.0
/// What a checkpointer removes from its folder while its other threads write there.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <thread>

#include "core/base/clock.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/levels/checkpointer.h"
#include "repo/levels/shards/shard.h"
#include "tests/repo/levels/support/refusing_disk.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_folder.h"

namespace freshet {
namespace {

constexpr auto kMinute = std::chrono::minutes(1);

/// Points that threads passed, for others to wait for.
class Points {
 public:
  void pass(std::string_view point, std::uint64_t step) {
    const MutexLock lock(mutex_);
    std::uint64_t& last = last_[std::string(point)];
    last = std::max(last, step);
    changed_.notify_all();
  }
  bool wait_for(std::string_view point, std::uint64_t step) {
    const Time deadline = system_clock().now() + kMinute;
    const MutexLock lock(mutex_);
    while (last_[std::string(point)] < step) {
      if (!changed_.wait_until(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::uint64_t> last_ FRESHET_GUARDED_BY(mutex_);
};

/// Two tensors; the first changes at every step, the second at step 4 alone.
struct TwoTensors {
  static std::vector<LaidTensor> tensors() {
    return {{.spec = {.name = "changing", .dtype = DType::u8, .shape = {20'000}}, .layout = {.cut = Cut::split}},
            {.spec = {.name = "resting", .dtype = DType::u8, .shape = {20'000}}, .layout = {.cut = Cut::split}}};
  }
  explicit TwoTensors(std::uint32_t ranks, std::uint32_t own_rank) : rank(own_rank) {
    for (const LaidTensor& tensor : tensors()) held.emplace_back(held_piece(tensor, 0, ranks, rank).bytes());
  }
  static std::byte second_of(std::uint64_t step) { return static_cast<std::byte>(step < 4 ? 77 : 78); }
  void fill(std::uint64_t step) {
    std::ranges::fill(held[0], static_cast<std::byte>(step));
    std::ranges::fill(held[1], second_of(step));
  }
  bool is_of(std::uint64_t step) const {
    const auto all = [](const std::vector<std::byte>& bytes, std::byte value) {
      return std::ranges::count(bytes, value) == std::ssize(bytes);
    };
    return all(held[0], static_cast<std::byte>(step)) && all(held[1], second_of(step));
  }
  std::vector<Bytes> views() const { return {held.begin(), held.end()}; }
  std::vector<MutableBytes> writable() { return {held.begin(), held.end()}; }
  const std::uint32_t rank;
  std::vector<std::vector<std::byte>> held;
};

TEST(Retention, WhatIsWrittenWhileTheFolderIsCleanedStays) {
  const TemporaryFolder folder;
  Points points;
  TwoTensors memory(1, 0);
  {
    Checkpointer::Options options{.model = "net", .local = {folder.path()}};
    options.at_point = [&](std::string_view point, std::uint64_t step) {
      points.pass(point, step);
      EXPECT_TRUE(point != "cleaning" || step != 1 || points.wait_for("local_synced", 2));
    };
    const auto opened = Checkpointer::open(options, TwoTensors::tensors());
    ASSERT_TRUE(opened) << opened.error().message();
    const auto writable = memory.writable();
    ASSERT_TRUE((*opened)->restore(writable));
    for (const std::uint64_t step : {1, 2}) {
      memory.fill(step);
      const auto captured = (*opened)->checkpoint(step, memory.views());
      ASSERT_TRUE(captured) << captured.error().message();
      ASSERT_TRUE((*opened)->wait(captured->version, CheckpointLevel::local, kMinute));
      ASSERT_TRUE(points.wait_for("cleaning", step));
    }
  }
  const auto opened = Checkpointer::open({.model = "net", .local = {folder.path()}}, TwoTensors::tensors());
  ASSERT_TRUE(opened) << opened.error().message();
  const auto writable = memory.writable();
  const auto restored = (*opened)->restore(writable);
  ASSERT_TRUE(restored) << restored.error().message();
  ASSERT_TRUE(*restored);
  EXPECT_EQ((*restored)->step, 2U);
  EXPECT_TRUE(memory.is_of(2));
}

/// Two ranks of two hosts, each with a folder of its own.
class TwoHosts {
 public:
  using Loop = std::function<Status(Checkpointer& checkpointer, TwoTensors& memory, std::uint64_t restored)>;

  const std::string& folder_of(std::uint32_t rank) const { return folders_[rank].path(); }
  void lose(std::uint32_t rank) const { std::filesystem::remove_all(folder_of(rank)); }
  /// The rank's file of a version, of that suffix.
  std::string file_of(std::uint32_t rank, VersionNumber number, std::string_view suffix) const {
    for (const auto& file : std::filesystem::directory_iterator(folder_of(rank) + "/net")) {
      const std::string name = file.path().filename();
      if (name.starts_with(format("{}.", number)) && name.ends_with(suffix)) return file.path();
    }
    ADD_FAILURE() << "rank " << rank << " has no " << suffix << " of version " << number;
    return {};
  }
  /// Removes what the rank's folder has of a version.
  void remove_version(std::uint32_t rank, VersionNumber number) const {
    std::vector<std::filesystem::path> of_it;
    for (const auto& file : std::filesystem::directory_iterator(folder_of(rank) + "/net")) {
      if (file.path().filename().string().starts_with(format("{}.", number))) of_it.push_back(file.path());
    }
    EXPECT_FALSE(of_it.empty());
    for (const auto& path : of_it) std::filesystem::remove(path);
  }
  /// One life of the job.
  void run(const std::function<void(Checkpointer::Options&)>& change, const Loop& loop,
           const levels::RestartChoice& choice = {}) const {
    const std::string meet = format("tcp://127.0.0.1:{}", free_port());
    std::array<Status, 2> ended;
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto work = [&]() -> Status {
          Checkpointer::Options options{.model = "net", .rank = rank, .ranks = 2, .meet = meet};
          options.host = format("host{}", rank);
          options.local = {folder_of(rank)};
          change(options);
          FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(options, TwoTensors::tensors()));
          TwoTensors memory(2, rank);
          const auto writable = memory.writable();
          FRESHET_ASSIGN(const auto restored, checkpointer->restore(writable, choice));
          if (restored && !memory.is_of(restored->step)) return fail(Code::corrupt, "the bytes are not the step's");
          FRESHET_TRY(loop(*checkpointer, memory, restored ? restored->step : 0));
          return checkpointer->finish(kMinute);
        };
        ended[rank] = work();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Status& status : ended) EXPECT_TRUE(status) << status.error().message();
  }

 private:
  std::array<TemporaryFolder, 2> folders_;
};

void with_partners(Checkpointer::Options& options) { options.group = {.kind = levels::GroupScheme::Kind::partner}; }
void without_group(Checkpointer::Options&) {}

/// Goes on from `begin`. Each of the steps reaches `local`, the last one `level`.
TwoHosts::Loop train(std::uint64_t begin, const std::vector<std::uint64_t>& steps, CheckpointLevel level) {
  return [=](Checkpointer& checkpointer, TwoTensors& memory, std::uint64_t restored) -> Status {
    if (restored != begin) return fail(Code::corrupt, format("restored step {}", restored));
    VersionNumber newest = 0;
    for (const std::uint64_t step : steps) {
      memory.fill(step);
      FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(step, memory.views()));
      newest = captured.version;
      FRESHET_TRY(checkpointer.wait(newest, CheckpointLevel::local, kMinute));
    }
    return steps.empty() ? Status() : checkpointer.wait(newest, level, kMinute);
  };
}

/// Version 3 changes half of what version 1 wrote, and nobody has copies of 1 and 2. Its copy needs version 1's bytes
/// at the partner; while it is written, the partner cleans its folder after versions 3 and 4 at `local`.
TEST(Retention, WhatACopyUnderWayNeedsStays) {
  const TwoHosts hosts;
  hosts.run(without_group, train(0, {1, 2}, CheckpointLevel::local));
  Points points;
  hosts.run(
      [&](Checkpointer::Options& options) {
        with_partners(options);
        if (options.rank != 1) return;
        options.at_point = [&](std::string_view point, std::uint64_t step) {
          points.pass(point, step);
          EXPECT_TRUE(point != "group_half" || step != 3 || points.wait_for("cleaning", 4));
        };
      },
      train(2, {3, 4}, CheckpointLevel::group));
  // The other host is lost, and so is version 4: 3 is whole, from its copies.
  hosts.lose(0);
  hosts.remove_version(1, 4);
  hosts.run(with_partners, train(3, {}, CheckpointLevel::local));
}

std::size_t shards_in(const std::string& folder) {
  return static_cast<std::size_t>(std::ranges::count_if(
      std::filesystem::directory_iterator(folder + "/net"),
      [](const std::filesystem::directory_entry& file) { return file.path().extension() == ".shard"; }));
}

/// The newest shard stays, since the next one inherits from it. So does what an earlier life has.
TEST(Retention, AVersionThatOneRankCannotWriteLeavesNoShardAtTheOther) {
  const TwoHosts hosts;
  test::RefusingDisk disk(".shard");
  hosts.run(without_group, train(0, {1}, CheckpointLevel::local));
  levels::RestartChoice choice;
  choice.from_nothing = true;
  hosts.run(
      [&](Checkpointer::Options& options) {
        if (options.rank == 1) options.env = &disk;
      },
      [&](Checkpointer& checkpointer, TwoTensors& memory, std::uint64_t) -> Status {
        disk.errno_value = ENOSPC;
        for (std::uint64_t step = 5; step < 10; ++step) {
          memory.fill(step);
          FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(step, memory.views()));
          if (checkpointer.wait(captured.version, CheckpointLevel::local, kMinute)) return refuse("it was written");
        }
        FRESHET_TRY(checkpointer.settle(kMinute));
        // Version 1, and at rank 0 the newest of this life.
        const std::size_t shards = shards_in(hosts.folder_of(memory.rank));
        if (shards != (memory.rank == 0 ? 2 : 1)) return refuse(format("{} shards at rank {}", shards, memory.rank));
        disk.errno_value = 0;
        memory.fill(10);
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(10, memory.views()));
        return checkpointer.wait(captured.version, CheckpointLevel::local, kMinute);
      },
      choice);
  hosts.run(without_group, train(10, {}, CheckpointLevel::local));
}

/// Steps that differ by this have the same first tensor.
constexpr std::uint64_t kSameFirst = 256;

/// Version 1 has no copy; version 2's needs only the second tensor of it. The job goes back to version 1, and version 3
/// inherits the first tensor. The partner has bytes of version 1, but not these. Version 2's copy stays whole, too.
TEST(Retention, BytesThatWereCopiedForAnotherVersionAreNotTakenForThose) {
  const TwoHosts hosts;
  hosts.run(without_group, train(0, {1}, CheckpointLevel::local));
  hosts.run(with_partners, train(1, {2}, CheckpointLevel::group));
  levels::RestartChoice choice;
  choice.version = 1;
  hosts.run(with_partners, train(1, {1 + kSameFirst}, CheckpointLevel::group), choice);
  hosts.lose(0);
  hosts.run(with_partners, train(1 + kSameFirst, {}, CheckpointLevel::local));
  hosts.lose(0);
  hosts.remove_version(1, 3);
  hosts.run(with_partners, train(2, {}, CheckpointLevel::local));
}

/// As above, but the copy of version 2 needs the first tensor of version 1, and version 3 the second, at the end of the
/// file, which cannot be read.
TEST(Retention, AByteThatCannotBeReadTakesNoOtherWithIt) {
  const TwoHosts hosts;
  hosts.run(without_group, train(0, {1}, CheckpointLevel::local));
  hosts.run(with_partners, train(1, {1 + kSameFirst}, CheckpointLevel::group));
  const std::string copy = hosts.file_of(1, 1, ".copybytes");
  std::filesystem::resize_file(copy, std::filesystem::file_size(copy) - 1);
  levels::RestartChoice choice;
  choice.version = 1;
  hosts.run(with_partners, train(1, {2}, CheckpointLevel::group), choice);
  hosts.lose(0);
  hosts.run(with_partners, train(2, {}, CheckpointLevel::local));
  hosts.lose(0);
  hosts.remove_version(1, 3);
  hosts.run(with_partners, train(1 + kSameFirst, {}, CheckpointLevel::local));
}

/// A head that claims more payload than its tensors have would fill the partner's disk with zeros.
TEST(Retention, APayloadLargerThanItsTensorsIsNotCopied) {
  const TwoHosts hosts;
  hosts.run(without_group, train(0, {1}, CheckpointLevel::local));
  const std::string file = hosts.file_of(0, 1, ".shard");
  const auto claim_more = [&] {
    std::ifstream in(file, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const Bytes all = bytes_of(bytes.data(), bytes.size());
    const auto head_bytes = levels::shard_head_bytes(all);
    ASSERT_TRUE(head_bytes);
    auto header = levels::decode_shard_head(all.first(*head_bytes));
    ASSERT_TRUE(header);
    header->payload_bytes = std::uint64_t{1} << 40;
    const std::vector<std::byte> head = levels::encode_shard_head(*header);
    ASSERT_EQ(head.size(), *head_bytes);
    std::ofstream(file, std::ios::binary).write(reinterpret_cast<const char*>(head.data()), std::ssize(head));
    std::filesystem::resize_file(file, head.size() + header->payload_bytes);
  };
  hosts.run(
      [&](Checkpointer::Options& options) {
        with_partners(options);
        if (options.rank != 0) return;
        options.at_point = [&](std::string_view point, std::uint64_t) {
          if (point == "local_synced") claim_more();
        };
      },
      [&](Checkpointer& checkpointer, TwoTensors& memory, std::uint64_t) -> Status {
        memory.fill(2);
        FRESHET_ASSIGN(const auto captured, checkpointer.checkpoint(2, memory.views()));
        const Status copied = checkpointer.wait(captured.version, CheckpointLevel::group, kMinute);
        const std::string said = copied ? "" : copied.error().message();
        const std::string name = std::filesystem::path(file).filename();
        if (said.find(name) == std::string::npos) return refuse("the error is: " + said);
        if (said.find("1099511627776 bytes") == std::string::npos) return refuse("the error is: " + said);
        return {};
      });
}

}  // namespace
}  // namespace freshet
