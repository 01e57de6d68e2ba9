// SPDX-License-Identifier: Apache-2.0
// Which values a checkpoint of tensors on a GPU has, and that the loop does not wait for the GPU.

#include <cstring>
#include <filesystem>
#include <iostream>
#include <thread>

#include "core/base/format.h"
#include "repo/levels/job_catalog.h"
#include "tests/repo/levels/gpu/checkpoint_lab.h"
#include "tests/repo/levels/support/meeting_address.h"

namespace freshet::test {
namespace {

using gpu::must;

class DeviceCheckpoint : public CheckpointLab {};

const std::vector<std::uint64_t> kLayerSizes = {1, 63, 0, 4096, 40'001, 7, (std::uint64_t{1} << 20) + 3};

TEST_P(DeviceCheckpoint, AVersionHasWhatTheStreamHadQueued) {
  std::cout << "seed " << seed_ << "\n";
  in_many_orders([&] {
    begin_life(laid(kLayerSizes));
    DeviceModel model(trainer_, kLayerSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    for (std::uint64_t number = 1; number <= 3 && !HasFailure(); ++number) {
      hold(true);
      model.write(step.handle(), 100 + number);
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 1000 * number + i);
      const Values values = model.values();
      const auto captured = checkpoint(*checkpointer_, number, held_of(model, step.handle()));
      ASSERT_TRUE(captured) << captured.error().message();
      if (host_ != nullptr) {
        EXPECT_FALSE(checkpointer_->copies()->wait({})) << "nothing has run, and the loop goes on";
        EXPECT_EQ(checkpointer_->poll(captured->version, CheckpointLevel::memory), false);
      }
      // The tensors are written again, and so is their memory after they were freed in the stream's order.
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 5000 + i);
      hold(false);
      ASSERT_TRUE(checkpointer_->copies()->wait(kPatience));
      expect_stored(captured->version, values);
      finish(step.handle());
    }
  });
}

TEST_P(DeviceCheckpoint, MemoryIsFreedAsSoonAsItsStreamHasRun) {
  in_many_orders([&] {
    begin_life(laid(kLayerSizes));
    auto model = std::make_unique<DeviceModel>(trainer_, kLayerSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    model->write(step.handle(), 3);
    const Values values = model->values();
    const auto captured = checkpoint(*checkpointer_, 1, held_of(*model, step.handle()));
    ASSERT_TRUE(captured) << captured.error().message();
    finish(step.handle());  // It ran after our copies.
    model.reset();
    expect_stored(captured->version, values);
  });
}

TEST_P(DeviceCheckpoint, LayersAreCapturedAsTheirUpdatesAreQueued) {
  in_many_orders([&] {
    begin_life(laid(kLayerSizes));
    DeviceModel model(trainer_, kLayerSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    const auto held = held_of(model, step.handle());
    hold(true);
    ASSERT_TRUE(checkpointer_->begin(1));
    Values values(model.size());
    for (std::size_t i = model.size(); i-- > 0;) {
      model.write(step.handle(), i, 10 + i);
      values[i] = seeded_bytes(kLayerSizes[i], 10 + i);
      const Status queued = checkpointer_->capture(std::span(held).subspan(i, 1));
      ASSERT_TRUE(queued) << queued.error().message();
      ASSERT_TRUE(checkpointer_->wait_for_copy(i)) << "it waits for no GPU";
      model.write(step.handle(), i, 1000);
    }
    const auto captured = checkpointer_->end();
    ASSERT_TRUE(captured) << captured.error().message();
    model.write(step.handle(), 2000);
    hold(false);
    expect_stored(captured->version, values);
    finish(step.handle());
  });
}

TEST_P(DeviceCheckpoint, TensorsOfTheHostAndOfTwoStreamsMakeOneVersion) {
  in_many_orders([&] {
    const std::vector<std::uint64_t> first_sizes = {5000, 33};
    const std::vector<std::uint64_t> second_sizes = {70'001};
    std::vector<LaidTensor> tensors = laid(first_sizes, "one");
    for (const auto& more : {laid({300'000, 3000}, "host"), laid(second_sizes, "other")}) {
      tensors.insert(tensors.end(), more.begin(), more.end());
    }
    begin_life(tensors);
    DeviceModel one(trainer_, first_sizes);
    DeviceModel other(trainer_, second_sizes);
    auto beside = seeded_bytes(300'000, 8);
    auto together = seeded_bytes(3000, 9);
    const gpu::Stream first = must(trainer_->create_stream());
    const gpu::Stream second = must(trainer_->create_stream());
    hold(true);
    one.write(first.handle(), 2);
    other.write(second.handle(), 3);
    const Values values = {one.values()[0], one.values()[1], beside, together, other.values()[0]};
    std::vector<Checkpointer::Held> held = held_of(one, first.handle());
    held.push_back({.tensor = 3, .bytes = together});
    held.push_back(held_of(other, second.handle(), 4).front());
    ASSERT_TRUE(checkpointer_->begin(1));
    ASSERT_TRUE(checkpointer_->capture_beside(2, beside));
    ASSERT_TRUE(checkpointer_->capture(held));
    std::ranges::fill(together, std::byte{0});  // The host's copy is done.
    const auto captured = checkpointer_->end();
    ASSERT_TRUE(captured) << captured.error().message();
    std::ranges::fill(beside, std::byte{0});
    one.write(first.handle(), 4);
    other.write(second.handle(), 5);
    hold(false);
    expect_stored(captured->version, values);
    finish(first.handle());
    finish(second.handle());
  });
}

TEST_P(DeviceCheckpoint, TensorsOfTwoDevicesMakeOneVersion) {
  open_platform(seed_);
  if (must(platform_->devices()).size() < 2) GTEST_SKIP() << "this machine has one GPU";
  in_many_orders([&] {
    begin_life(laid({5000, 6001}));
    const auto second_device = must(platform_->open(must(platform_->devices())[1].uuid));
    DeviceModel one(trainer_, {5000});
    DeviceModel other(second_device, {6001}, 1);
    const gpu::Stream first = must(trainer_->create_stream());
    const gpu::Stream second = must(second_device->create_stream());
    hold(true);
    one.write(first.handle(), 2);
    other.write(second.handle(), 3);
    const Values values = {one.values()[0], other.values()[0]};
    std::vector<Checkpointer::Held> held = held_of(one, first.handle());
    held.push_back(held_of(other, second.handle(), 1).front());
    const auto captured = checkpoint(*checkpointer_, 1, held);
    ASSERT_TRUE(captured) << captured.error().message();
    one.write(first.handle(), 4);
    other.write(second.handle(), 5);
    hold(false);
    expect_stored(captured->version, values);
  });
}

/// Of a replicated tensor each rank stores a part, which begins amid the tensor.
TEST_P(DeviceCheckpoint, EachRankStoresItsPart) {
  in_many_orders(
      [&] {
        const std::vector<std::uint64_t> sizes = {(std::uint64_t{3} << 20) + 5, 100, 9000};
        std::vector<LaidTensor> tensors = laid(sizes);
        tensors[2].layout = {.cut = Cut::from, .argument = 1};
        constexpr std::uint32_t kRanks = 3;
        const std::string meet = meeting_address();
        std::vector<Status> ended(kRanks);
        const auto life = [&](std::uint32_t rank, bool goes_on) -> Status {
          Checkpointer::Options mine = options();
          mine.local = {folder_->path() + "/" + std::to_string(rank)};
          mine.rank = rank;
          mine.ranks = kRanks;
          mine.meet = meet;
          mine.lost_after = std::chrono::seconds(20);
          FRESHET_ASSIGN(const auto checkpointer, Checkpointer::open(std::move(mine), tensors));
          HeldMemory memory(kRanks, rank, tensors);
          const auto writable = memory.writable();
          FRESHET_ASSIGN([[maybe_unused]] const auto restored, checkpointer->restore(writable));
          DeviceModel model(trainer_, sizes);
          const gpu::Stream step = must(trainer_->create_stream());
          model.write(step.handle(), 5);
          if (goes_on) {
            for (std::size_t i = 0; i < sizes.size(); ++i) {
              if (memory.held[i] != model.values()[i]) return fail(Code::corrupt, format("tensor {} differs", i));
            }
          } else {
            if (rank != 1) model.write(step.handle(), 2, 77);  // Those of rank 1 are stored.
            FRESHET_ASSIGN(const auto captured, checkpoint(*checkpointer, 1, held_of(model, step.handle())));
            model.write(step.handle(), 6);
            FRESHET_TRY(checkpointer->wait(captured.version, CheckpointLevel::local, kPatience));
          }
          must(trainer_->drain(kPatience));
          return checkpointer->finish(kPatience);
        };
        for (const bool goes_on : {false, true}) {
          std::vector<std::thread> threads;
          for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
            threads.emplace_back([&, rank] { ended[rank] = life(rank, goes_on); });
          }
          for (std::thread& thread : threads) thread.join();
          for (const Status& status : ended) EXPECT_TRUE(status) << status.error().message();
        }
      },
      3);
}

TEST_P(DeviceCheckpoint, UnchangedTensorsAreStoredOnceAndKeepTheirOwner) {
  open_platform(seed_);
  const std::vector<std::uint64_t> sizes = {1 << 20, 1000};
  begin_life(laid(sizes));
  DeviceModel model(trainer_, sizes);
  const gpu::Stream step = must(trainer_->create_stream());
  model.write(step.handle(), 1);
  std::vector<std::uintmax_t> shards;
  for (std::uint64_t number = 1; number <= 2; ++number) {
    model.write(step.handle(), 1, number);
    const auto captured = checkpoint(*checkpointer_, number, held_of(model, step.handle()));
    ASSERT_TRUE(captured) << captured.error().message();
    EXPECT_EQ(captured->bytes, sizes[0] + sizes[1]) << "what changed is not known yet";
    ASSERT_TRUE(checkpointer_->wait(captured->version, CheckpointLevel::local, kPatience));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_->path())) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".shard") && name.starts_with(std::to_string(number))) shards.push_back(entry.file_size());
    }
  }
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_GT(shards[0], sizes[0]);
  EXPECT_LT(shards[1], 10'000U);
  // The bytes are stored once by their digests; whose they are, the sealer finds behind the loop.
  const auto catalog = must(levels::JobCatalog::open({folder_->path()}));
  for (const OwnerRow& row : must(catalog->owners({"net", 2}))) {
    EXPECT_EQ(row.owner.number, row.bytes == sizes[0] ? 1U : 2U) << row.tensor;
  }
  expect_stored(2, model.values());
}

TEST_P(DeviceCheckpoint, ManySmallTensorsAreFewLaunches) {
  open_platform(seed_);
  std::vector<std::uint64_t> sizes(3000);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + i % 13;
  sizes[77] = 300'001;  // Beyond what goes by the table.
  begin_life(laid(sizes));
  DeviceModel model(trainer_, sizes);
  const gpu::Stream step = must(trainer_->create_stream());
  model.write(step.handle(), 1);
  const Values values = model.values();
  const std::uint64_t turns = host_ != nullptr ? host_->turns() : 0;
  const auto captured = checkpoint(*checkpointer_, 1, held_of(model, step.handle()));
  ASSERT_TRUE(captured) << captured.error().message();
  model.write(step.handle(), 2);
  expect_stored(captured->version, values);
  if (host_ != nullptr) {
    EXPECT_LT(host_->turns() - turns, 200U);
  }
}

TEST_P(DeviceCheckpoint, ARunningJobGoesBackToAVersionThatIsStillBeingCopied) {
  in_many_orders([&] {
    begin_life(laid(kLayerSizes));
    DeviceModel model(trainer_, kLayerSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    model.write(step.handle(), 1);
    const Values values = model.values();
    const auto captured = checkpoint(*checkpointer_, 1, held_of(model, step.handle()));
    ASSERT_TRUE(captured) << captured.error().message();
    model.write(step.handle(), 2);
    const auto writable = memory_->writable();
    const auto early = checkpointer_->restore(writable);
    ASSERT_TRUE(early) << early.error().message();
    EXPECT_TRUE(checkpointer_->copies()->wait({})) << "restore() waits for the GPU";
    // Nobody goes back to it before rank 0 has said that all ranks have it.
    const Status captured_by_all = checkpointer_->wait(captured->version, CheckpointLevel::memory, kPatience);
    ASSERT_TRUE(captured_by_all) << captured_by_all.error().message();
    const auto restored = checkpointer_->restore(writable);
    ASSERT_TRUE(restored) << restored.error().message();
    ASSERT_TRUE(*restored);
    EXPECT_EQ((*restored)->version.number, captured->version);
    expect_held(values);
    // It is what the next version is compared with.
    model.write(step.handle(), 1);
    const auto next = checkpoint(*checkpointer_, 2, held_of(model, step.handle()));
    ASSERT_TRUE(next) << next.error().message();
    expect_stored(next->version, values);
  });
}

TEST_P(DeviceCheckpoint, ALoopThatIsAheadSkipsAndNothingIsLost) {
  open_platform(seed_);
  if (host_ == nullptr) GTEST_SKIP() << "a real device's work cannot be held";
  in_many_orders(
      [&] {
        begin_life(laid(kLayerSizes));
        DeviceModel model(trainer_, kLayerSizes);
        const gpu::Stream step = must(trainer_->create_stream());
        hold(true);
        std::vector<VersionNumber> versions;
        for (std::uint64_t number = 1; number <= 2; ++number) {
          model.write(step.handle(), number);
          const auto captured = checkpoint(*checkpointer_, number, held_of(model, step.handle()));
          ASSERT_TRUE(captured) << captured.error().message();
          versions.push_back(captured->version);
        }
        const Values values = model.values();
        model.write(step.handle(), 3);
        const auto skipped = checkpointer_->begin(3);
        EXPECT_EQ(gpu::code_of(skipped), "out_of_space");
        EXPECT_THAT(gpu::words_of(skipped), testing::HasSubstr("not copied from the GPU yet"));
        EXPECT_EQ(gpu::code_of(checkpointer_->capture(held_of(model, step.handle()))), "failed_precondition");
        EXPECT_EQ(checkpointer_->poll(versions[0], CheckpointLevel::memory), false);
        hold(false);
        for (const VersionNumber version : versions) {
          const Status there = checkpointer_->wait(version, CheckpointLevel::memory, kPatience);
          EXPECT_TRUE(there) << there.error().message();
        }
        const Status none = checkpointer_->wait(versions[1] + 1, CheckpointLevel::memory, kPatience);
        EXPECT_EQ(gpu::code_of(none), "out_of_space") << "the step that was skipped has no checkpoint";
        EXPECT_EQ(failed_, 1);
        expect_stored(versions[1], values);
        const auto next = checkpoint(*checkpointer_, 4, held_of(model, step.handle()));
        ASSERT_TRUE(next) << next.error().message();
        expect_stored(next->version, model.values());
      },
      4);
}

/// A version of the host's tensors alone does not overtake one whose copies run.
TEST_P(DeviceCheckpoint, VersionsEndInTheirOrder) {
  open_platform(seed_);
  if (host_ == nullptr) GTEST_SKIP() << "a real device's work cannot be held";
  begin_life(laid({50'000}));
  DeviceModel model(trainer_, {50'000});
  const gpu::Stream step = must(trainer_->create_stream());
  model.write(step.handle(), 1);
  hold(true);
  const auto first = checkpoint(*checkpointer_, 1, held_of(model, step.handle()));
  ASSERT_TRUE(first) << first.error().message();
  const auto bytes = seeded_bytes(50'000, 2);
  const auto second = checkpointer_->checkpoint(2, std::vector<Bytes>{bytes});
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(checkpointer_->copies(), nullptr);
  EXPECT_EQ(checkpointer_->poll(second->version, CheckpointLevel::memory), false);
  hold(false);
  EXPECT_TRUE(checkpointer_->wait(first->version, CheckpointLevel::memory, kPatience));
  expect_stored(second->version, {bytes});
}

std::vector<gpu::EngineCase> checkpoint_driver_cases() {
  if (!gpu::open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceCheckpoint, testing::Values(gpu::EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, DeviceCheckpoint, testing::ValuesIn(checkpoint_driver_cases()));

TEST(GpuDriver, CheckpointsToo) {
  const auto platform = gpu::open_driver_platform();
  if (!platform) GTEST_SKIP() << platform.error().message();
  std::cout << (*platform)->description() << "\n";
}

}  // namespace
}  // namespace freshet::test
