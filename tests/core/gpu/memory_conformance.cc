// SPDX-License-Identifier: Apache-2.0
// Device memory, registered host memory, and what an address is.

#include "core/arena/slab.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kHostBytes = 256 << 10;  // Whole pages of any size that Linux has.

TEST_P(GpuConformance, DevicesHaveNamesMemoryAndUuids) {
  EXPECT_FALSE(platform_->description().empty());
  for (const DeviceInfo& info : infos_) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.bytes, 0U);
    EXPECT_EQ(must(Uuid::parse(info.uuid.text())), info.uuid);
    for (const DeviceInfo& other : infos_) EXPECT_TRUE(&other == &info || other.uuid != info.uuid);
  }
  EXPECT_EQ(device_->info().uuid, infos_.front().uuid);
  EXPECT_GT(device_->info().granularity, 0U);
}

TEST_P(GpuConformance, AnUnknownUuidIsNotFound) {
  const auto refused = platform_->open(must(Uuid::parse("GPU-01234567-89ab-cdef-0123-456789abcdef")));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::not_found);
  EXPECT_NE(refused.error().message().find("GPU-01234567-89ab-cdef-0123-456789abcdef"), std::string::npos);
  EXPECT_NE(refused.error().message().find(infos_.front().uuid.text()), std::string::npos);
}

TEST_P(GpuConformance, MemoryIsWholeGranules) {
  const std::uint64_t granule = device_->info().granularity;
  for (const std::uint64_t bytes : {std::uint64_t{1}, granule - 1, granule, granule + 1}) {
    const Memory memory = must(device_->allocate(bytes));
    EXPECT_EQ(memory.bytes(), bytes <= granule ? granule : 2 * granule);
    EXPECT_TRUE(memory.writable());
    EXPECT_NE(memory.address(), nullptr);
  }
}

TEST_P(GpuConformance, AbsurdSizesAreRefused) {
  EXPECT_EQ(code_of(device_->allocate(0)), "invalid_argument");
  EXPECT_EQ(code_of(device_->allocate(std::uint64_t{1} << 50)), "invalid_argument");
  EXPECT_EQ(code_of(device_->allocate(~std::uint64_t{0})), "invalid_argument");
  expect_works();
}

TEST_P(GpuConformance, MoreThanThereIsIsOutOfSpace) {
  const Memory before = filled(5000, 1);
  const auto refused = device_->allocate(2 * device_->info().bytes);
  ASSERT_EQ(code_of(refused), "out_of_space");
  EXPECT_NE(refused.error().message().find("OUT_OF_MEMORY"), std::string::npos) << refused.error().message();
  expect_bytes(before.address(), 5000, 1);
  expect_works();
}

TEST_P(GpuConformance, MemoryThatEndedIsFreeAgain) {
  const Room before = must(device_->room());
  EXPECT_LE(before.free, before.total);
  // Three fifths fit once, and again only when the first have gone.
  for (int i = 0; i < 3; ++i) {
    const Memory memory = must(device_->allocate(before.free / 5 * 3));
    EXPECT_LE(must(device_->room()).free, before.total - memory.bytes());
    EXPECT_EQ(code_of(device_->allocate(before.free / 5 * 3)), "out_of_space");
  }
}

TEST_P(GpuConformance, MemoryKeepsItsDevice) {
  const Memory memory = filled(5000, 1);
  const std::weak_ptr<Device> watched = device_;
  device_ = nullptr;
  ASSERT_NE(watched.lock(), nullptr);
  device_ = watched.lock();
  expect_bytes(memory.address(), 5000, 1);
}

TEST_P(GpuConformance, TheEndOfMemoryWaitsForItsCopies) {
  in_many_orders([&] {
    const Memory to = filled(5000, 2);
    const Stream stream = must(device_->create_stream());
    {
      const Memory from = filled(5000, 1);
      must(device_->copy(stream.handle(), to.address(), from.address(), 5000));
    }
    finish(stream.handle());
    expect_bytes(to.address(), 5000, 1);
  });
}

TEST_P(GpuConformance, AnAddressIsHostPinnedOrDevice) {
  const Pages pages(kHostBytes);
  const Memory memory = must(device_->allocate(kHostBytes));
  const int local = 0;
  EXPECT_EQ(must(device_->describe(&local)).kind, MemoryKind::host);
  EXPECT_EQ(must(device_->describe(pages.begin())).kind, MemoryKind::host);
  EXPECT_FALSE(must(device_->describe(pages.begin())).device);
  {
    const Registration registration = must(device_->register_host(pages.begin(), kHostBytes, HostAccess::read_write));
    EXPECT_EQ(must(device_->describe(pages.begin())).kind, MemoryKind::pinned);
    EXPECT_EQ(must(device_->describe(pages.begin() + kHostBytes - 1)).kind, MemoryKind::pinned);
  }
  EXPECT_EQ(must(device_->describe(pages.begin())).kind, MemoryKind::host);
  for (const std::uint64_t at : {std::uint64_t{0}, kHostBytes / 2, memory.bytes() - 1}) {
    const PointerInfo info = must(framework()->describe(memory.address() + at));
    EXPECT_EQ(info.kind, MemoryKind::device);
    ASSERT_TRUE(info.device);
    EXPECT_EQ(*info.device, device_->info().uuid);
  }
}

TEST_P(GpuConformance, RegisteredMemoryIsCopiedBothWays) {
  in_many_orders([&] {
    const Pages out(kHostBytes);
    const Pages in(kHostBytes);
    const Registration one = must(device_->register_host(out.begin(), kHostBytes, HostAccess::read_write));
    const Registration other = must(device_->register_host(in.begin(), kHostBytes, HostAccess::read_write));
    const auto bytes = test::seeded_bytes(kHostBytes, 1);
    std::copy(bytes.begin(), bytes.end(), out.begin());
    const Memory memory = must(device_->allocate(kHostBytes));
    const Stream stream = must(device_->create_stream());
    must(device_->copy(stream.handle(), memory.address(), out.begin(), kHostBytes));
    must(device_->copy(stream.handle(), in.begin() + 1, memory.address() + 1, kHostBytes - 1));
    finish(stream.handle());
    EXPECT_TRUE(test::same_bytes(in.all().subspan(1), std::span(bytes).subspan(1)));
    EXPECT_EQ(in.begin()[0], std::byte{0});
  });
}

TEST_P(GpuConformance, MemoryIsRegisteredOnce) {
  const Pages pages(kHostBytes);
  Registration first = must(device_->register_host(pages.begin(), kHostBytes, HostAccess::read_write));
  const auto again = [&](Device& by, std::uint64_t at, std::uint64_t bytes) {
    return code_of(by.register_host(pages.begin() + at, bytes, HostAccess::read_write));
  };
  EXPECT_EQ(again(*device_, 0, kHostBytes), "already_exists");
  EXPECT_EQ(again(*device_, kHostBytes / 2, kHostBytes / 2), "already_exists");
  EXPECT_EQ(again(*framework(), 0, kHostBytes), "already_exists");
  must(first.end(kPatience));
  must(first.end(kPatience));  // Nothing is left to do.
  EXPECT_EQ(again(*framework(), 0, kHostBytes), "no error");
  EXPECT_EQ(again(*device_, 0, kHostBytes / 2), "no error");
}

TEST_P(GpuConformance, OnlyWholePagesAreRegistered) {
  const Pages pages(kHostBytes);
  const auto code = [&](const std::byte* at, std::uint64_t bytes) {
    return code_of(device_->register_host(at, bytes, HostAccess::read_write));
  };
  EXPECT_EQ(code(pages.begin() + 1, kHostBytes / 2), "invalid_argument");
  EXPECT_EQ(code(pages.begin(), kHostBytes - 1), "invalid_argument");
  EXPECT_EQ(code(pages.begin(), 0), "invalid_argument");
  EXPECT_EQ(code(nullptr, kHostBytes), "invalid_argument");
  EXPECT_EQ(code(pages.begin(), ~std::uint64_t{0} / 4096 * 4096), "invalid_argument");
  EXPECT_EQ(code(pages.begin(), kHostBytes), "no error");
}

TEST_P(GpuConformance, PagesThatAreNotThereAreNotRegistered) {
  Pages gone(kHostBytes);
  const std::byte* const at = gone.begin();
  gone.unmap();
  EXPECT_FALSE(device_->register_host(at, kHostBytes, HostAccess::read_write));
  const Pages untouchable(kHostBytes, PROT_NONE);
  EXPECT_FALSE(device_->register_host(untouchable.begin(), kHostBytes, HostAccess::read_write));
  expect_works();
}

TEST_P(GpuConformance, AnArenasSlabIsRegistered) {
  Slab slab = must(Slab::create("gpu-test", {.bytes = kHostBytes, .lock = false}));
  const Memory memory = filled(kHostBytes, 1);
  const Registration registration =
      must(device_->register_host(slab.memory().data(), slab.bytes(), HostAccess::read_write));
  const Stream stream = must(device_->create_stream());
  must(device_->copy(stream.handle(), slab.memory().data(), memory.address(), kHostBytes));
  finish(stream.handle());
  EXPECT_TRUE(test::same_bytes(slab.memory(), test::seeded_bytes(kHostBytes, 1)));
}

TEST_P(GpuConformance, ASubscribersReadOnlyMappingIsRegistered) {
  if (!device_->info().registers_read_only) GTEST_SKIP() << "this device takes no read-only host memory";
  Slab slab = must(Slab::create("gpu-test", {.bytes = kHostBytes, .lock = false}));
  const auto bytes = test::seeded_bytes(kHostBytes, 1);
  std::copy(bytes.begin(), bytes.end(), slab.memory().begin());
  const Slab mapped = must(Slab::adopt(::dup(slab.descriptor()), slab.bytes()));
  const std::byte* const at = std::as_const(mapped).memory().data();
  EXPECT_FALSE(device_->register_host(at, kHostBytes, HostAccess::read_write));
  const Registration registration = must(device_->register_host(at, kHostBytes, HostAccess::read_only));
  const Memory memory = must(device_->allocate(kHostBytes));
  const Stream stream = must(device_->create_stream());
  must(device_->copy(stream.handle(), memory.address(), at, kHostBytes));
  EXPECT_EQ(code_of(device_->copy(stream.handle(), const_cast<std::byte*>(at), memory.address(), 8)),
            "invalid_argument");
  finish(stream.handle());
  expect_bytes(memory.address(), kHostBytes, 1);
}

TEST_P(GpuConformance, UnregisteringWaitsForCopiesThatRun) {
  in_many_orders([&] {
    Pages pages(kHostBytes);
    const auto bytes = test::seeded_bytes(kHostBytes, 1);
    std::copy(bytes.begin(), bytes.end(), pages.begin());
    const Memory memory = must(device_->allocate(kHostBytes));
    const Stream stream = must(device_->create_stream());
    Registration registration = must(device_->register_host(pages.begin(), kHostBytes, HostAccess::read_write));
    must(device_->copy(stream.handle(), memory.address(), pages.begin(), kHostBytes));
    must(registration.end(kPatience));
    std::fill_n(pages.begin(), kHostBytes, std::byte{0});
    pages.unmap();
    finish(stream.handle());
    expect_bytes(memory.address(), kHostBytes, 1);
  });
}

TEST_P(GpuConformance, MemoryStaysRegisteredWhenItsWorkIsNotDoneInTime) {
  const Pages pages(kHostBytes);
  const Memory to = must(device_->allocate(long_bytes()));
  const Memory from = must(device_->allocate(long_bytes()));
  const Stream stream = must(device_->create_stream());
  Registration registration = must(device_->register_host(pages.begin(), kHostBytes, HostAccess::read_write));
  queue_long_work(stream.handle(), to, from);
  EXPECT_EQ(code_of(registration.end(std::chrono::seconds(0))), "timed_out");
  EXPECT_EQ(must(device_->describe(pages.begin())).kind, MemoryKind::pinned);
  must(registration.end(kPatience));
  EXPECT_EQ(must(device_->describe(pages.begin())).kind, MemoryKind::host);
}

}  // namespace
}  // namespace freshet::gpu
