// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>

#include "core/gpu/device.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

/// A driver that registers host memory, and may refuse to unregister it. Its device may be lost by then.
class KeepsRegistered final : public Engine {
 public:
  explicit KeepsRegistered(bool keeps, bool is_lost = false) : keeps_(keeps), is_lost_(is_lost) {}
  const DeviceInfo& info() const override { return info_; }
  bool is_stuck() const override { return is_lost_ && was_asked_; }
  Status register_host(const void*, std::uint64_t, HostAccess) override { return {}; }
  Status unregister_host(const void*) override {
    was_asked_ = true;
    return keeps_ ? Status(no()) : Status();
  }

  Result<Room> room() override { return no(); }
  Result<PointerInfo> describe(const void*) override { return no(); }
  Result<Block> create_block(std::uint64_t) override { return no(); }
  Result<Block> import_block(FileDescriptor, std::uint64_t) override { return no(); }
  Result<FileDescriptor> export_block(const Block&) override { return no(); }
  Status destroy_block(const Block&) override { return no(); }
  Result<StreamHandle> create_stream() override { return no(); }
  Status destroy_stream(StreamHandle) override { return no(); }
  Result<EventHandle> create_event() override { return no(); }
  Status destroy_event(EventHandle) override { return no(); }
  Result<bool> is_capturing(StreamHandle) override { return no(); }
  Status record(EventHandle, StreamHandle) override { return no(); }
  Result<bool> is_done(EventHandle) override { return no(); }
  Status make_wait(StreamHandle, EventHandle) override { return no(); }
  Status copy(StreamHandle, std::byte*, const std::byte*, std::uint64_t) override { return no(); }
  Status launch(StreamHandle, const Launch&, std::span<const std::byte>) override { return no(); }
  Status unload() override { return no(); }

 private:
  static tl::unexpected<Error> no() { return fail(Code::unavailable, "this driver does not"); }
  const DeviceInfo info_;
  const bool keeps_;
  const bool is_lost_;
  bool was_asked_ = false;
};

/// Other memory at the address would be taken for the memory that the driver knows, and has other pages.
TEST(Registration, MemoryThatTheDriverKeepsRegisteredStays) {
  for (const bool keeps : {false, true}) {
    const auto device = Device::make(std::make_unique<KeepsRegistered>(keeps));
    auto memory = std::make_shared<Pages>(4096);
    const std::weak_ptr<Pages> owner = memory;
    {
      const Registration registration =
          must(device->register_host(memory->begin(), 4096, HostAccess::read_write, memory));
      memory = nullptr;
      EXPECT_FALSE(owner.expired());
    }
    EXPECT_EQ(owner.expired(), !keeps);
  }
}

/// Other devices of the process would take other memory at the address for it.
TEST(Registration, MemoryOfALostDeviceStaysWhereTheDriverKeepsIt) {
  for (const bool keeps : {false, true}) {
    for (const bool is_ended : {false, true}) {
      const auto device = Device::make(std::make_unique<KeepsRegistered>(keeps, true));
      auto memory = std::make_shared<Pages>(4096);
      Registration registration = must(device->register_host(memory->begin(), 4096, HostAccess::read_write, memory));
      const std::weak_ptr<Pages> owner = std::exchange(memory, nullptr);
      if (is_ended) must(registration.end(kPatience));
      registration = Registration();
      EXPECT_EQ(owner.expired(), !keeps) << is_ended;
    }
  }
}

TEST(Registration, MemoryIsLetGoOfWithTheEndOfItsRegistration) {
  const auto device = Device::make(std::make_unique<KeepsRegistered>(false));
  auto memory = std::make_shared<Pages>(4096);
  Registration registration = must(device->register_host(memory->begin(), 4096, HostAccess::read_write, memory));
  const std::weak_ptr<Pages> owner = std::exchange(memory, nullptr);
  must(registration.end(kPatience));
  EXPECT_TRUE(owner.expired());
}

}  // namespace
}  // namespace freshet::gpu
