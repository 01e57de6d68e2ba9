// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A job of one rank whose tensors lie on a GPU. On the host device and, where one is, a real one.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "repo/levels/checkpointer.h"
#include "tests/repo/levels/support/held_memory.h"
#include "tests/transport/publish/gpu/device_lab.h"

namespace freshet::test {

inline std::vector<LaidTensor> laid(const std::vector<std::uint64_t>& sizes, const std::string& prefix = "layer") {
  std::vector<LaidTensor> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensors.push_back(
        {.spec = {.name = prefix + std::to_string(i) + ".w", .dtype = DType::u8, .shape = {sizes[i]}}, .layout = {}});
  }
  return tensors;
}

/// All of a model's tensors; `first` is the index of its first one among the job's.
inline std::vector<Checkpointer::Held> held_of(const DeviceModel& model, gpu::StreamHandle stream,
                                               std::size_t first = 0) {
  std::vector<Checkpointer::Held> held;
  for (const TensorView& view : model.views(stream)) {
    held.push_back({.tensor = first + held.size(), .bytes = view.data, .place = view.place});
  }
  return held;
}

inline Result<Checkpointer::Captured> checkpoint(Checkpointer& checkpointer, std::uint64_t step,
                                                 std::span<const Checkpointer::Held> held) {
  FRESHET_TRY(checkpointer.begin(step));
  const Status captured = checkpointer.capture(held);
  auto ended = checkpointer.end();
  if (!captured) return fail(Error(captured.error()));
  return ended;
}

class CheckpointLab : public testing::TestWithParam<gpu::EngineCase> {
 protected:
  void TearDown() override { close(); }

  /// Another platform, with another order of the devices' work, and an empty folder.
  void open_platform(std::uint64_t seed) {
    close();
    trainer_.reset();
    if (GetParam().is_host) {
      auto host =
          std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed, .devices = 2, .registers = registers_});
      host_ = host.get();
      platform_ = std::move(host);
    } else {
      platform_ = gpu::must(gpu::open_driver_platform());
    }
    trainer_ = gpu::must(platform_->open(gpu::must(platform_->devices()).front().uuid));
    folder_ = std::make_unique<TemporaryFolder>();
    failed_ = 0;
  }

  Checkpointer::Options options() const {
    Checkpointer::Options options = alone(folder_->path());
    options.gpus = platform_;
    options.keep[CheckpointLevel::local] = 100;
    options.on_event = [this](const CheckpointEvent& event) {
      if (event.kind == CheckpointEvent::Kind::failed && event.level == CheckpointLevel::memory) ++failed_;
    };
    return options;
  }

  /// A life of the job, which goes on from what its folder has.
  void begin_life(const std::vector<LaidTensor>& tensors, Checkpointer::Options options) {
    checkpointer_.reset();
    memory_ = std::make_unique<HeldMemory>(1, 0, tensors);
    tensors_ = tensors;
    checkpointer_ = gpu::must(Checkpointer::open(std::move(options), tensors));
    const auto writable = memory_->writable();
    restored_ = gpu::must(checkpointer_->restore(writable));
  }
  void begin_life(const std::vector<LaidTensor>& tensors) { begin_life(tensors, options()); }

  void close() {
    hold(false);
    checkpointer_.reset();
  }

  /// On the host device: no work runs from here on, so what returns did not wait for any.
  void hold(bool is_held) {
    if (host_ != nullptr) host_->hold(is_held);
  }

  void finish(gpu::StreamHandle stream) {
    const gpu::Event done = gpu::must(trainer_->create_event());
    gpu::must(trainer_->record(done, stream));
    gpu::must(trainer_->wait(done, kPatience));
  }

  void in_many_orders(const std::function<void()>& body, std::uint64_t orders_of_host = 8) {
    const std::uint64_t orders = GetParam().is_host ? orders_of_host : 1;
    for (std::uint64_t seed = seed_; seed < seed_ + orders && !HasFailure(); ++seed) {
      SCOPED_TRACE("FRESHET_GPU_SEED=" + std::to_string(seed));
      open_platform(seed);
      body();
    }
  }

  /// The version is on the disk, and the next life goes on from it.
  void expect_stored(VersionNumber version, const Values& values) {
    const Status stored = checkpointer_->wait(version, CheckpointLevel::local, kPatience);
    ASSERT_TRUE(stored) << stored.error().message();
    ASSERT_TRUE(checkpointer_->settle(kPatience));
    begin_life(tensors_);
    ASSERT_TRUE(restored_);
    EXPECT_EQ(restored_->version.number, version);
    EXPECT_TRUE(restored_->notes.empty()) << restored_->notes.front();
    expect_held(values);
  }
  void expect_held(const Values& values) const {
    ASSERT_EQ(memory_->held.size(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_TRUE(same_bytes(memory_->held[i], values[i])) << i;
  }

  const std::uint64_t seed_ = from_environment("FRESHET_GPU_SEED", 1);
  bool registers_ = true;
  std::shared_ptr<gpu::Platform> platform_;
  gpu::HostPlatform* host_ = nullptr;     ///< Null on a real device.
  std::shared_ptr<gpu::Device> trainer_;  ///< The framework's own: another object than the checkpointer's.
  std::unique_ptr<TemporaryFolder> folder_;
  std::vector<LaidTensor> tensors_;
  std::unique_ptr<HeldMemory> memory_;
  std::optional<Checkpointer::Restored> restored_;
  mutable std::atomic<int> failed_ = 0;  ///< Versions that failed at `memory`.
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace freshet::test
