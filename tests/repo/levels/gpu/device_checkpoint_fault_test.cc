// SPDX-License-Identifier: Apache-2.0
// What goes wrong with checkpoints of tensors on a GPU: one error names it, earlier versions stay, training goes on.

#include <vector>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "repo/levels/shards/share_sealer.h"
#include "tests/repo/levels/gpu/checkpoint_lab.h"
#include "tests/support/eventually.h"
#include "tests/support/log_lines_with.h"

namespace freshet::test {
namespace {

using gpu::code_of;
using gpu::must;
using gpu::words_of;
using testing::HasSubstr;

/// On the host device alone: a real one would be lost, or has no such fault.
class DeviceCheckpointFaults : public CheckpointLab {
 protected:
  /// A first version, at every level that the job has.
  std::unique_ptr<DeviceModel> store_first() {
    open_platform(seed_);
    begin_life(laid(sizes_));
    auto model = std::make_unique<DeviceModel>(trainer_, sizes_);
    model->write({}, 1);
    const auto first = checkpoint(*checkpointer_, 1, held_of(*model, {}));
    EXPECT_TRUE(first) << words_of(first);
    EXPECT_TRUE(checkpointer_->wait(1, CheckpointLevel::local, kPatience));
    return model;
  }

  const std::vector<std::uint64_t> sizes_ = {5000, 77, 40'000};
};

TEST_P(DeviceCheckpointFaults, NoDriver) {
  if (gpu::open_driver_platform()) GTEST_SKIP() << "this machine has a driver";
  open_platform(seed_);
  Checkpointer::Options without = options();
  without.gpus = nullptr;
  begin_life(laid({100}), without);
  const auto bytes = seeded_bytes(100, 1);
  const Checkpointer::Held held{.tensor = 0, .bytes = bytes, .place = {.memory = MemoryKind::device}};
  const auto refused = checkpoint(*checkpointer_, 1, std::span(&held, 1));
  EXPECT_EQ(code_of(refused), "unavailable");
  EXPECT_THAT(words_of(refused), HasSubstr("copy from GPU 0"));
  EXPECT_THAT(words_of(refused), HasSubstr("libcuda.so.1"));
  const auto of_host = checkpointer_->checkpoint(2, std::vector<Bytes>{bytes});
  ASSERT_TRUE(of_host) << words_of(of_host);
  expect_stored(of_host->version, {bytes});
}

TEST_P(DeviceCheckpointFaults, WhatIsNotThatDevicesIsRefusedByName) {
  const auto model = store_first();
  const auto elsewhere = seeded_bytes(5000, 9);
  const DeviceModel second(must(platform_->open(gpu::host_device_uuid(1))), {5000}, 1);
  std::uint64_t step = 1;
  const auto refused = [&](auto change) {
    auto held = held_of(*model, {});
    change(held[0]);
    const int failed_before = failed_;
    auto answer = checkpoint(*checkpointer_, ++step, held);
    // It has a place until it has failed, and there are two.
    EXPECT_TRUE(came_true([&] { return failed_ == failed_before + 1; }));
    return answer;
  };
  using Held = Checkpointer::Held;
  const auto host = refused([&](Held& held) { held.bytes = elsewhere; });
  EXPECT_EQ(code_of(host), "invalid_argument");
  EXPECT_THAT(words_of(host), HasSubstr("tensor layer0.w on GPU 0: the driver knows its address as host memory"));
  const auto other = refused([&](Held& held) { held.bytes = {second.address(0), 5000}; });
  EXPECT_THAT(words_of(other), HasSubstr("tensor layer0.w on GPU 0: its memory is that of device GPU-"));
  const auto none = refused([&](Held& held) { held.place.device = 2; });
  EXPECT_THAT(words_of(none), HasSubstr("copy from GPU 2: this process sees 2 of them"));
  const auto stream = refused([&](Held& held) { held.place.stream = 0xdead; });
  EXPECT_THAT(words_of(stream), HasSubstr("no such stream"));
  const auto kind = refused([&](Held& held) { held.place.memory = static_cast<MemoryKind>(9); });
  EXPECT_EQ(code_of(kind), "unsupported");
  const auto size = refused([&](Held& held) { held.bytes = held.bytes.first(4999); });
  EXPECT_THAT(words_of(size), HasSubstr("tensor layer0.w: 4999 bytes came, this rank holds 5000"));
  const auto twice = refused([&](Held& held) { held = {.tensor = 1, .bytes = {model->address(1), 77}}; });
  EXPECT_THAT(words_of(twice), HasSubstr("tensor layer1.w was captured already"));
  model->write({}, 2);
  const auto next = checkpoint(*checkpointer_, ++step, held_of(*model, {}));
  ASSERT_TRUE(next) << words_of(next);
  expect_stored(next->version, model->values());
  EXPECT_EQ(failed_, 7) << "each version that was refused failed once";
}

TEST_P(DeviceCheckpointFaults, ALengthBeyondItsMemory) {
  open_platform(seed_);
  begin_life(laid({std::uint64_t{1} << 20}));
  const DeviceModel model(trainer_, {5000});
  const Checkpointer::Held held{
      .tensor = 0, .bytes = {model.address(0), std::size_t{1} << 20}, .place = {.memory = MemoryKind::device}};
  const auto refused = checkpoint(*checkpointer_, 1, std::span(&held, 1));
  EXPECT_EQ(code_of(refused), "invalid_argument");
  EXPECT_THAT(words_of(refused), HasSubstr("tensor layer0.w on GPU 0"));
  EXPECT_THAT(words_of(refused), HasSubstr("past its memory's end"));
}

TEST_P(DeviceCheckpointFaults, ADeviceThatIsLostAmidACapture) {
  LogLinesWith log("version 2, copy the tensors");
  const auto model = store_first();
  const Values values = model->values();
  hold(true);
  model->write({}, 2);
  const auto captured = checkpoint(*checkpointer_, 2, held_of(*model, {}));
  ASSERT_TRUE(captured) << words_of(captured);
  host_->strike(0);
  hold(false);
  const Status failed = checkpointer_->wait(captured->version, CheckpointLevel::memory, kPatience);
  EXPECT_EQ(code_of(failed), "failed_precondition");
  EXPECT_THAT(words_of(failed), HasSubstr("lost to this process"));
  EXPECT_TRUE(checkpointer_->copies()->wait(kPatience));
  EXPECT_EQ(failed_, 1);
  EXPECT_EQ(log.count(), 1) << "a loop that does not wait hears of it";
  const auto again = checkpoint(*checkpointer_, 3, held_of(*model, {}));
  EXPECT_EQ(code_of(again), "failed_precondition");
  // What the program saved to host memory can still be stored; and so the version before is not gone.
  const auto writable = memory_->writable();
  const auto restored = checkpointer_->restore(writable);
  ASSERT_TRUE(restored && *restored) << words_of(restored);
  EXPECT_EQ((*restored)->version.number, 1U);
  expect_held(values);
  const Values saved = model->values();
  const auto of_host = checkpointer_->checkpoint(4, std::vector<Bytes>(saved.begin(), saved.end()));
  ASSERT_TRUE(of_host) << words_of(of_host);
  expect_stored(of_host->version, saved);
}

TEST_P(DeviceCheckpointFaults, MemoryThatTheDriverDoesNotRegisterIsCopiedIntoAllTheSame) {
  LogLinesWith log("this is said once");
  registers_ = false;
  const auto model = store_first();
  model->write({}, 2);
  const Values values = model->values();
  const auto captured = checkpoint(*checkpointer_, 2, held_of(*model, {}));
  ASSERT_TRUE(captured) << words_of(captured);
  model->write({}, 3);
  expect_stored(captured->version, values);
  finish({});
  EXPECT_EQ(log.count(), 1);
}

/// Each step that is skipped waits for its turn to be told of.
TEST_P(DeviceCheckpointFaults, AGpuThatHangsEndsTheJobAtALimit) {
  const auto model = store_first();
  hold(true);
  model->write({}, 2);
  std::uint64_t step = 1;
  for (int turn = 0; turn < 2; ++turn) ASSERT_TRUE(checkpoint(*checkpointer_, ++step, held_of(*model, {})));
  for (std::size_t waiting = 2; waiting < levels::ShareSealer::kWaitingMax; ++waiting) {
    ASSERT_EQ(code_of(checkpointer_->begin(++step)), "out_of_space") << waiting;
  }
  for (int time = 0; time < 2; ++time) {
    const auto ended = checkpointer_->begin(++step);
    EXPECT_EQ(code_of(ended), "unavailable");
    EXPECT_THAT(words_of(ended), HasSubstr("2048 versions wait for copies from a GPU that do not end"));
  }
  hold(false);
}

TEST_P(DeviceCheckpointFaults, ATensorThatIsMissingFailsTheVersionWhenItsCopiesHaveEnded) {
  const auto model = store_first();
  hold(true);
  model->write({}, 2);
  auto held = held_of(*model, {});
  held.pop_back();
  const auto captured = checkpoint(*checkpointer_, 2, held);
  EXPECT_EQ(code_of(captured), "failed_precondition");
  EXPECT_THAT(words_of(captured), HasSubstr("tensor layer2.w was not captured"));
  // A sealer that does not wait for the copies ends the version meanwhile.
  const Status early = checkpointer_->wait(2, CheckpointLevel::memory, std::chrono::milliseconds(50));
  EXPECT_EQ(code_of(early), "timed_out") << "its memory is the copies' until then";
  hold(false);
  EXPECT_EQ(code_of(checkpointer_->wait(2, CheckpointLevel::memory, kPatience)), "failed_precondition");
  const auto next = checkpoint(*checkpointer_, 3, held_of(*model, {}));
  ASSERT_TRUE(next) << words_of(next);
  expect_stored(next->version, model->values());
}

TEST_P(DeviceCheckpointFaults, ACheckpointerEndsWithItsCopiesUnderWay) {
  for (std::uint64_t round = 0; round < 6; ++round) {
    open_platform(seed_ + round);
    begin_life(laid(sizes_));
    DeviceModel model(trainer_, sizes_);
    std::shared_ptr<const CheckpointCopies> copies;
    for (std::uint64_t number = 1; number <= 2; ++number) {
      model.write({}, number);
      ASSERT_TRUE(checkpointer_->begin(number));
      ASSERT_TRUE(checkpointer_->capture(held_of(model, {})));
      copies = checkpointer_->copies();
      if (number == 2 && round % 2 == 0) break;  // Amid a version.
      ASSERT_TRUE(checkpointer_->end());
    }
    checkpointer_.reset();
    EXPECT_TRUE(copies->wait({})) << "each has ended";
    finish({});
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceCheckpointFaults,
                         testing::Values(gpu::EngineCase{.name = "host", .is_host = true}));

}  // namespace
}  // namespace freshet::test
