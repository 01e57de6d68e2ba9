// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer whose tensors lie on a GPU, its publisher, and a subscriber. On the host device and, where one is, a real
/// one.

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/core/gpu/gpu_conformance.h"
#include "tests/transport/model_fixture.h"

namespace freshet::test {

using Values = std::vector<std::vector<std::byte>>;  ///< By tensor.

/// Byte tensors in one slab of device memory, at odd places. It plays the framework: its work is queued, and what the
/// queued work reads stays.
class DeviceModel {
 public:
  DeviceModel(std::shared_ptr<gpu::Device> device, const std::vector<std::uint64_t>& sizes, std::int32_t ordinal = 0,
              const std::string& prefix = "layer")
      : device_(std::move(device)), ordinal_(ordinal) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      offsets_.push_back(bytes_ + 1);
      bytes_ += sizes[i] + 1;
      specs_.push_back({.name = prefix + std::to_string(i) + ".w", .dtype = DType::u8, .shape = {sizes[i]}});
    }
    image_.resize(bytes_ + 1);
    memory_ = gpu::must(device_->allocate(image_.size()));
  }

  std::size_t size() const { return specs_.size(); }
  std::byte* address(std::size_t tensor) const { return memory_.address() + offsets_[tensor]; }

  /// Queues new values of all tensors, or of one.
  void write(gpu::StreamHandle stream, std::uint64_t seed) {
    image_ = seeded_bytes(image_.size(), seed);
    queue(stream, 0, image_);
  }
  void write(gpu::StreamHandle stream, std::size_t tensor, std::uint64_t seed) {
    const auto bytes = seeded_bytes(specs_[tensor].bytes(), seed);
    std::ranges::copy(bytes, image_.begin() + static_cast<std::ptrdiff_t>(offsets_[tensor]));
    queue(stream, offsets_[tensor], bytes);
  }

  /// Queues another value of one byte.
  void change(gpu::StreamHandle stream, std::size_t tensor, std::uint64_t offset) {
    const std::uint64_t at = offsets_[tensor] + offset;
    image_[at] ^= std::byte{0x2A};
    queue(stream, at, {&image_[at], 1});
  }

  /// The values once all that is queued has run.
  Values values() const {
    Values values;
    for (std::size_t i = 0; i < size(); ++i) {
      const auto begin = image_.begin() + static_cast<std::ptrdiff_t>(offsets_[i]);
      values.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(specs_[i].bytes()));
    }
    return values;
  }

  std::vector<TensorView> views(gpu::StreamHandle stream) const {
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < size(); ++i) {
      views.push_back({.spec = specs_[i],
                       .data = {address(i), specs_[i].bytes()},
                       .place = {.memory = MemoryKind::device,
                                 .device = ordinal_,
                                 .stream = reinterpret_cast<std::uintptr_t>(stream.native)}});
    }
    return views;
  }

 private:
  void queue(gpu::StreamHandle stream, std::uint64_t offset, std::span<const std::byte> bytes) {
    const auto& kept = kept_.emplace_back(bytes.begin(), bytes.end());
    gpu::must(device_->copy(stream, memory_.address() + offset, kept.data(), kept.size()));
  }

  const std::shared_ptr<gpu::Device> device_;
  const std::int32_t ordinal_;
  std::vector<TensorSpec> specs_;
  std::vector<std::uint64_t> offsets_;
  std::uint64_t bytes_ = 0;
  std::vector<std::byte> image_;
  std::deque<std::vector<std::byte>> kept_;
  gpu::Memory memory_;
};

/// What gpu_device_peer publishes: the same bytes for the same seed, in every process.
inline const std::vector<std::uint64_t> kPeerSizes = {5, 4096, 40'001, 100'003};
inline Values peer_values(const std::shared_ptr<gpu::Device>& device, std::uint64_t seed) {
  DeviceModel model(device, kPeerSizes);
  const gpu::Stream stream = gpu::must(device->create_stream());
  model.write(stream.handle(), seed);
  gpu::must(device->drain(kPatience));
  return model.values();
}

class DeviceLab : public testing::TestWithParam<gpu::EngineCase> {
 protected:
  void SetUp() override { open(seed_); }
  void TearDown() override {
    hold(false);
    close();
  }

  /// Everything anew, with another order of the devices' work.
  void open(std::uint64_t seed, std::uint64_t arena_limit_bytes = 0) {
    close();
    if (GetParam().is_host) {
      auto host =
          std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed, .devices = 2, .registers = registers_});
      host_ = host.get();
      platform_ = host;
    } else {
      platform_ = gpu::must(gpu::open_driver_platform());
    }
    trainer_ = gpu::must(platform_->open(gpu::must(platform_->devices()).front().uuid));
    folder_ = std::make_unique<TemporaryFolder>();
    publisher_ = open_publisher({.model = "demo",
                                 .hub_options = {.directory = folder_->path()},
                                 .arena_limit_bytes = arena_limit_bytes,
                                 .device_memory = device_memory_,
                                 .lock_memory = false,
                                 .gpus = platform_});
    subscriber_ = open_subscriber({.model = "demo", .directory = folder_->path()});
  }
  void close() {
    subscriber_.reset();
    publisher_.reset();
    folder_.reset();
    trainer_.reset();
    host_ = nullptr;
    platform_.reset();
  }

  /// On the host device: no work runs from here on, so what returns did not wait for any.
  void hold(bool is_held) {
    if (host_ != nullptr) host_->hold(is_held);
  }

  /// What the framework's stream has so far has run: the default streams are nobody's whom memory's end waits for.
  void finish(gpu::StreamHandle stream) {
    const gpu::Event done = gpu::must(trainer_->create_event());
    gpu::must(trainer_->record(done, stream));
    gpu::must(trainer_->wait(done, kPatience));
  }

  void in_many_orders(const std::function<void()>& body, std::uint64_t orders_of_host = 12) {
#if defined(__SANITIZE_THREAD__)
    if (device_memory_.is_wanted()) orders_of_host = 2;  // Each fiber of each digest's kernel is a thread to it.
#endif
    const std::uint64_t orders = GetParam().is_host ? orders_of_host : 1;
    for (std::uint64_t seed = seed_; seed < seed_ + orders && !HasFailure(); ++seed) {
      SCOPED_TRACE("FRESHET_GPU_SEED=" + std::to_string(seed));
      open(seed);
      body();
    }
  }

  void expect_served(VersionNumber version, const Values& values) {
    const auto report = publisher_->wait_committed(version, kPatience);
    ASSERT_TRUE(report) << report.error().message();
    ASSERT_TRUE(subscriber_->wait_for(version, kPatience));
    const Snapshot snapshot = subscriber_->snapshot();
    ASSERT_EQ(snapshot.version(), version);
    ASSERT_EQ(snapshot.manifest().digests.size(), values.size());
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE(same_bytes(snapshot.bytes(i), values[i])) << "tensor " << i << " of version " << version;
      ASSERT_EQ(snapshot.manifest().digests[i], digest_of(values[i]));
    }
  }

  const std::uint64_t seed_ = from_environment("FRESHET_GPU_SEED", 1);
  bool registers_ = true;
  DeviceMemory device_memory_;
  std::shared_ptr<gpu::Platform> platform_;
  gpu::HostPlatform* host_ = nullptr;     ///< Null on a real device.
  std::shared_ptr<gpu::Device> trainer_;  ///< The framework's own: another object than the publisher's.
  std::unique_ptr<TemporaryFolder> folder_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
};

}  // namespace freshet::test
