// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One suite for every engine of core/gpu: the host device always, the driver where a device is. Cases are in
/// *_conformance.cc, instances in gpu_conformance_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/gpu/host_device.h"
#include "tests/support/from_environment.h"
#include "tests/support/seeded_bytes.h"

namespace freshet::gpu {

/// The value; an error ends the case with its message.
template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// The code of a refusal; "no error" is none of them.
template <typename T>
std::string code_of(const Result<T>& result) {
  return result ? "no error" : std::string(name_of(result.error().code()));
}

/// Its message; nothing when there was no error.
template <typename T>
std::string words_of(const Result<T>& result) {
  return result ? std::string() : result.error().message();
}

inline constexpr auto kPatience = std::chrono::minutes(1);

struct EngineCase {
  const char* name = "";
  bool is_host = false;
};

inline std::unique_ptr<Platform> open_engine(const EngineCase& engine, std::uint64_t seed) {
  if (!engine.is_host) return must(open_driver_platform());
  return std::make_unique<HostPlatform>(HostOptions{.seed = seed, .devices = 2, .bytes = std::uint64_t{1} << 30});
}

/// Whole pages of host memory.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes, int protection = PROT_READ | PROT_WRITE) : bytes_(bytes) {
    void* const mapped = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::runtime_error("mmap");
    begin_ = static_cast<std::byte*>(mapped);
  }
  ~Pages() { unmap(); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::byte* begin() const { return begin_; }
  std::span<std::byte> all() const { return {begin_, bytes_}; }
  void unmap() {
    if (begin_ != nullptr) ::munmap(begin_, bytes_);
    begin_ = nullptr;
  }

 private:
  std::byte* begin_ = nullptr;
  std::uint64_t bytes_ = 0;
};

class GpuConformance : public testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override { open(seed_); }

  /// Another order of the same work: on the host device, of another seed.
  void open(std::uint64_t seed) {
    device_ = nullptr;
    platform_ = open_engine(GetParam(), seed);
    infos_ = must(platform_->devices());
    device_ = must(platform_->open(infos_.front().uuid));
  }

  /// Runs `body` under many orders, or once on a real device, which has its own.
  void in_many_orders(const std::function<void()>& body, std::uint64_t orders_of_host = 24) {
    const std::uint64_t orders = GetParam().is_host ? orders_of_host : 1;
    for (std::uint64_t seed = seed_; seed < seed_ + orders && !HasFailure(); ++seed) {
      SCOPED_TRACE("FRESHET_GPU_SEED=" + std::to_string(seed));
      open(seed);
      body();
    }
  }

  /// The same device for a framework's part in a case: another object, the same context.
  std::shared_ptr<Device> framework() { return must(platform_->open(device_->info().uuid)); }

  /// Everything that `stream` has so far is done.
  void finish(StreamHandle stream) {
    const Event event = must(device_->create_event());
    must(device_->record(event, stream));
    must(device_->wait(event, kPatience));
  }

  void write(std::byte* to, std::span<const std::byte> bytes) {
    const Stream stream = must(device_->create_stream());
    must(device_->copy(stream.handle(), to, bytes.data(), bytes.size()));
    finish(stream.handle());
  }

  std::vector<std::byte> read(const std::byte* from, std::uint64_t bytes) {
    std::vector<std::byte> out(bytes);
    const Stream stream = must(device_->create_stream());
    must(device_->copy(stream.handle(), out.data(), from, bytes));
    finish(stream.handle());
    return out;
  }

  /// A slab with bytes of a seed.
  Memory filled(std::uint64_t bytes, std::uint64_t seed) {
    Memory memory = must(device_->allocate(bytes));
    write(memory.address(), test::seeded_bytes(bytes, seed));
    return memory;
  }

  void expect_bytes(const std::byte* address, std::uint64_t bytes, std::uint64_t seed) {
    EXPECT_TRUE(test::same_bytes(read(address, bytes), test::seeded_bytes(bytes, seed)));
  }

  /// The device takes work as before.
  void expect_works() {
    const Memory memory = filled(4099, 77);
    expect_bytes(memory.address(), 4099, 77);
  }

  /// Queues work that the host can be sure not to see done at once. REQUIRES: both have long_bytes().
  void queue_long_work(StreamHandle stream, const Memory& to, const Memory& from) {
    const int copies = GetParam().is_host ? 64 : 512;
    for (int i = 0; i < copies; ++i) must(device_->copy(stream, to.address(), from.address(), long_bytes()));
  }
  std::uint64_t long_bytes() const { return GetParam().is_host ? 1 << 20 : 256 << 20; }

  /// A real device runs the kernels of a build with nvcc only.
  bool lacks_kernels() const { return !GetParam().is_host && fatbin().empty(); }

  const std::uint64_t seed_ = from_environment("FRESHET_GPU_SEED", 1);
  std::unique_ptr<Platform> platform_;
  std::vector<DeviceInfo> infos_;
  std::shared_ptr<Device> device_;
};

}  // namespace freshet::gpu
