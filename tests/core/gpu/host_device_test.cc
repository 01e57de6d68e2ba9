// SPDX-License-Identifier: Apache-2.0
// What the host device does beyond Device's contract: it makes faults show.
#include "core/gpu/host_device.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <set>

#include "core/base/interruption.h"
#include "core/gpu/host_world.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kFaultBytes = 4096;
constexpr std::uint64_t kFaultSeeds = 32;

/// One platform of a seed, with one device.
struct HostRig {
  explicit HostRig(std::uint64_t seed) : platform({.seed = seed, .devices = 1, .bytes = 64 << 20}) {
    device = must(platform.open(host_device_uuid(0)));
  }

  Memory filled(std::uint64_t seed) {
    Memory memory = must(device->allocate(kFaultBytes));
    const auto bytes = test::seeded_bytes(kFaultBytes, seed);
    const Stream stream = must(device->create_stream());
    must(device->copy(stream.handle(), memory.address(), bytes.data(), kFaultBytes));
    must(device->drain(kPatience));
    return memory;
  }

  std::vector<std::byte> read(const Memory& memory) {
    std::vector<std::byte> out(kFaultBytes);
    const Stream stream = must(device->create_stream());
    must(device->copy(stream.handle(), out.data(), memory.address(), kFaultBytes));
    must(device->drain(kPatience));
    return out;
  }

  HostPlatform platform;
  std::shared_ptr<Device> device;
};

/// How often a capture had not the bytes of its call, among the seeds: a trainer's stream writes the weights anew, with
/// or without a wait for the capture's event.
struct CaptureCount {
  int wrong = 0;
  int half_done = 0;
};

CaptureCount count_wrong_captures(std::uint64_t first_seed, bool with_wait) {
  CaptureCount count;
  for (std::uint64_t seed = first_seed; seed < first_seed + kFaultSeeds; ++seed) {
    HostRig rig(seed);
    const Memory weights = rig.filled(1);
    const Memory next = rig.filled(2);
    const Memory captured = rig.filled(3);
    const Stream ours = must(rig.device->create_stream());
    const Stream step = must(rig.device->create_stream());
    const Event event = must(rig.device->create_event());
    must(rig.device->copy(ours.handle(), captured.address(), weights.address(), kFaultBytes));
    must(rig.device->record(event, ours.handle()));
    if (with_wait) must(rig.device->make_wait(step.handle(), event.handle()));
    must(rig.device->copy(step.handle(), weights.address(), next.address(), kFaultBytes));
    must(rig.device->drain(kPatience));
    const auto bytes = rig.read(captured);
    if (!test::same_bytes(bytes, test::seeded_bytes(kFaultBytes, 1))) {
      ++count.wrong;
      if (!test::same_bytes(bytes, test::seeded_bytes(kFaultBytes, 2))) ++count.half_done;
    }
  }
  return count;
}

std::uint64_t first_seed() { return from_environment("FRESHET_GPU_SEED", 1); }

TEST(HostDevice, AMissingWaitBetweenStreamsIsAWrongByte) {
  const CaptureCount without = count_wrong_captures(first_seed(), false);
  RecordProperty("wrong_captures", without.wrong);
  EXPECT_GT(without.wrong, 0) << "of " << kFaultSeeds << " seeds from " << first_seed();
  EXPECT_LT(without.wrong, static_cast<int>(kFaultSeeds));  // No wait is luck, not always a fault.
  EXPECT_EQ(count_wrong_captures(first_seed(), true).wrong, 0);
}

TEST(HostDevice, OtherWorkSeesACopyHalfDone) {
  int half_done = 0;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 20 * kFaultSeeds && half_done == 0;
       seed += kFaultSeeds) {
    half_done += count_wrong_captures(seed, false).half_done;
  }
  EXPECT_GT(half_done, 0);
}

TEST(HostDevice, AHostThatDoesNotWaitFindsNothingDone) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 8; ++seed) {
    HostRig rig(seed);
    const Memory memory = rig.filled(1);
    std::vector<std::byte> back(kFaultBytes);
    const Stream stream = must(rig.device->create_stream());
    must(rig.device->copy(stream.handle(), back.data(), memory.address(), kFaultBytes));
    EXPECT_TRUE(test::all_bytes_are(back, std::byte{0})) << "seed " << seed;
    must(rig.device->drain(kPatience));
    EXPECT_TRUE(test::same_bytes(back, test::seeded_bytes(kFaultBytes, 1))) << "seed " << seed;
  }
}

TEST(HostDevice, AHostThatWritesTooEarlySpoilsItsCopy) {
  HostRig rig(first_seed());
  const Memory memory = rig.filled(1);
  auto sent = test::seeded_bytes(kFaultBytes, 2);
  const Stream stream = must(rig.device->create_stream());
  must(rig.device->copy(stream.handle(), memory.address(), sent.data(), kFaultBytes));
  std::fill(sent.begin(), sent.end(), std::byte{7});
  must(rig.device->drain(kPatience));
  EXPECT_TRUE(test::all_bytes_are(rig.read(memory), std::byte{7}));
}

/// In which order eight streams wrote one word: what the last of them, and each before, left.
std::vector<std::byte> order_of(std::uint64_t seed) {
  HostRig rig(seed);
  const Memory word = rig.filled(1);
  const Memory log = rig.filled(2);
  std::vector<Stream> streams;
  std::vector<std::byte> names(8);
  for (std::size_t i = 0; i < names.size(); ++i) {
    names[i] = static_cast<std::byte>(i);
    streams.push_back(must(rig.device->create_stream()));
    must(rig.device->copy(streams.back().handle(), word.address(), &names[i], 1));
    must(rig.device->copy(streams.back().handle(), log.address() + i, word.address(), 1));
  }
  must(rig.device->drain(kPatience));
  auto bytes = rig.read(log);
  bytes.resize(names.size());
  return bytes;
}

TEST(HostDevice, ASeedIsAnOrder) {
  std::set<std::vector<std::byte>> orders;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 8; ++seed) {
    const auto order = order_of(seed);
    EXPECT_EQ(order_of(seed), order) << "seed " << seed;
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 4U);
}

TEST(HostDevice, NewMemoryIsNotZero) {
  HostRig rig(first_seed());
  const Memory memory = must(rig.device->allocate(kFaultBytes));
  EXPECT_TRUE(test::all_bytes_are(rig.read(memory), std::byte{0xa5}));
}

TEST(HostDevice, MemoryThatEndsBeforeAForeignStreamsCopyMakesItStuck) {
  HostRig rig(first_seed());
  const auto framework = must(rig.platform.open(host_device_uuid(0)));
  const Memory to = rig.filled(1);
  const Stream theirs = must(framework->create_stream());
  {
    const Memory from = rig.filled(2);
    must(rig.device->copy(theirs.handle(), to.address(), from.address(), kFaultBytes));
  }  // Waits for our streams, not for theirs.
  const Status lost = framework->drain(kPatience);
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code(), Code::failed_precondition);
  EXPECT_THAT(lost.error().message(), testing::HasSubstr("a copy's memory is gone"));
}

TEST(HostDevice, AKernelThatFailsMakesItStuck) {
  // Below Device, which refuses the launch.
  host_detail::World world({.seed = first_seed(), .devices = 1, .bytes = 1 << 20});
  const StreamHandle stream = world.add_stream(0);
  const EventHandle event = world.add_event(0);
  must(world.launch(0, stream, {.launch = {.kernel = Kernel::kCopy}, .arguments = std::vector<std::byte>(1)}));
  must(world.record(0, event, stream));
  for (int looks = 0; looks < 1000 && world.why_stuck(0).empty(); ++looks) EXPECT_FALSE(must(world.is_done(event)));
  EXPECT_THAT(world.why_stuck(0), testing::StartsWith("HOST_ERROR_LAUNCH_FAILED: "));
}

TEST(HostDevice, AnInterruptedThreadEndsNothingUnderQueuedWork) {
  HostRig rig(first_seed());
  auto from = std::make_unique<Memory>(rig.filled(1));
  auto to = std::make_unique<Memory>(rig.filled(2));
  auto stream = std::make_unique<Stream>(must(rig.device->create_stream()));
  for (int i = 0; i < 2000; ++i) must(rig.device->copy(stream->handle(), to->address(), from->address(), kFaultBytes));
  {
    const Interruption wanted([] { return true; });
    stream = nullptr;
    from = nullptr;
    to = nullptr;
  }
  must(rig.device->drain(kPatience));  // Work whose memory is gone would make the device stuck.
  const Room room = must(rig.device->room());
  EXPECT_EQ(room.free, room.total);
}

TEST(HostDevice, AnInterruptedThreadGivesBackWhatALiveStreamUses) {
  HostRig rig(first_seed());
  const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::unique_ptr<void, decltype(&std::free)> host(std::aligned_alloc(page, page), &std::free);
  auto registration =
      std::make_unique<Registration>(must(rig.device->register_host(host.get(), page, HostAccess::read_write)));
  const Stream stream = must(rig.device->create_stream());
  auto memory = std::make_unique<Memory>(must(rig.device->allocate(page)));
  const auto queue = [&] {
    for (int i = 0; i < 500; ++i) must(rig.device->copy(stream.handle(), memory->address(), host.get(), page));
  };
  queue();
  {
    const Interruption wanted([] { return true; });
    EXPECT_EQ(code_of(registration->end(kPatience)), "cancelled");  // A call that can say so ends early.
    registration = nullptr;
  }
  registration =
      std::make_unique<Registration>(must(rig.device->register_host(host.get(), page, HostAccess::read_write)));
  queue();
  {
    const Interruption wanted([] { return true; });
    memory = nullptr;
  }
  const Room room = must(rig.device->room());
  EXPECT_EQ(room.free, room.total);
}

TEST(HostDevice, ADeviceOfAnOldKindHasNoKernels) {
  HostPlatform platform({.seed = first_seed(), .devices = 1, .bytes = 1 << 20, .compute_major = kComputeMajorMin - 1});
  const auto device = must(platform.open(host_device_uuid(0)));
  const Stream stream = must(device->create_stream());
  const Status refused = device->launch(stream.handle(), {.kernel = Kernel::kFill, .blocks = 1, .threads = 128},
                                        FillArguments{.to = nullptr, .bytes = 0, .value = 0});
  EXPECT_EQ(code_of(refused), "unsupported");
  EXPECT_THAT(words_of(refused), testing::HasSubstr("it has compute capability 7.0"));
}

TEST(HostDevice, OneStuckDeviceLeavesTheOther) {
  HostPlatform platform({.seed = first_seed(), .devices = 2, .bytes = 1 << 20});
  const auto lost = must(platform.open(host_device_uuid(0)));
  const auto well = must(platform.open(host_device_uuid(1)));
  platform.strike(0);
  const Stream stream = must(lost->create_stream());
  const Event event = must(lost->create_event());
  must(lost->record(event, stream.handle()));
  EXPECT_EQ(code_of(lost->wait(event, kPatience)), "failed_precondition");
  const Stream other = must(well->create_stream());
  const Event done = must(well->create_event());
  must(well->record(done, other.handle()));
  must(well->wait(done, kPatience));
}

TEST(HostDevice, HandlesThatAreNoneAreRefused) {
  HostRig rig(first_seed());
  const Event event = must(rig.device->create_event());
  const Stream stream = must(rig.device->create_stream());
  EXPECT_EQ(code_of(rig.device->record(event, StreamHandle::of(3))), "invalid_argument");
  EXPECT_EQ(code_of(rig.device->make_wait(stream.handle(), EventHandle{&rig})), "invalid_argument");
  EXPECT_EQ(code_of(rig.device->record(Event(), stream.handle())), "invalid_argument");
}

TEST(HostDevice, ADeviceOutlivesItsPlatform) {
  auto rig = std::make_unique<HostRig>(first_seed());
  const auto device = rig->device;
  const Memory memory = rig->filled(1);
  rig = nullptr;
  std::vector<std::byte> back(kFaultBytes);
  const Stream stream = must(device->create_stream());
  must(device->copy(stream.handle(), back.data(), memory.address(), kFaultBytes));
  must(device->drain(kPatience));
  EXPECT_TRUE(test::same_bytes(back, test::seeded_bytes(kFaultBytes, 1)));
}

}  // namespace
}  // namespace freshet::gpu
