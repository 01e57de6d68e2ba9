// SPDX-License-Identifier: Apache-2.0
// Versions in a GPU's memory: what neighbours on the same GPU read there, and what becomes of the memory.

#include <iostream>

#include "core/base/log.h"
#include "tests/support/answering_process.h"
#include "tests/support/this_build.h"
#include "tests/transport/publish/gpu/device_lab.h"
#include "transport/shm/door_guest.h"
#include "transport/shm/door_host.h"
#include "transport/subscribe/device/device_tensors.h"
#include "transport/subscribe/served_version.h"

namespace freshet::test {
namespace {

using gpu::must;

const std::vector<std::uint64_t> kSizesOnDevice = {1, 63, 0, 4096, 40'001, 7, 100'003};
const std::vector<std::uint64_t> kLargeSizes = {std::uint64_t{3} << 20, (std::uint64_t{1} << 20) + 1};

class DeviceMemoryPublish : public DeviceLab {
 protected:
  void SetUp() override {
    std::cout << "FRESHET_GPU_SEED=" << seed_ << "\n";
    device_memory_ = {.copies = 8};
    DeviceLab::SetUp();
  }
  void TearDown() override {
    hold(false);
    server_.reset();
    DeviceLab::TearDown();
  }

  /// Versions that nobody holds any more go a moment later. Of eight copies, four are then free.
  void wait_for_room() {
    constexpr std::uint64_t kOfOneVersion = 150'000;
    if (device_memory_.copies == 0) return;
    EXPECT_TRUE(eventually([&] { return used() <= 4 * kOfOneVersion; })) << used();
  }
  /// New values of all tensors, once the subscriber serves them.
  VersionNumber publish(DeviceModel& model, gpu::StreamHandle stream, std::uint64_t seed) {
    wait_for_room();
    model.write(stream, seed);
    const auto receipt = must(publisher_->publish(model.views(stream), {.step = seed}));
    must(publisher_->wait_committed(receipt.version, kPatience));
    must(subscriber_->wait_for(receipt.version, kPatience));
    return receipt.version;
  }
  /// The subscriber takes memory of the trainer's GPU, and its publisher knows it: the served version lies there.
  void take(DeviceModel& model, gpu::StreamHandle stream) {
    server_ = must(platform_->open(trainer_->info().uuid));
    must(subscriber_->take_device_memory(server_));
    std::uint64_t seed = 7000;
    ASSERT_TRUE(eventually([&] {
      publish(model, stream, ++seed);
      return is_on_device(subscriber_->snapshot());
    })) << publisher_->stat().device_memory_why;
  }
  /// Whether every tensor that has bytes lies there; false for a snapshot with none there.
  bool is_on_device(const Snapshot& snapshot) const {
    std::size_t there = 0;
    std::size_t wanted = 0;
    for (std::uint32_t i = 0; i < snapshot.manifest().digests.size(); ++i) {
      wanted += snapshot.bytes(i).empty() ? 0 : 1;
      there += snapshot.device_bytes(i, server_->info().uuid).empty() ? 0 : 1;
    }
    EXPECT_TRUE(there == 0 || there == wanted) << there << " of " << wanted;
    return there > 0;
  }
  std::vector<std::byte> read(Bytes on_device) {
    std::vector<std::byte> bytes(on_device.size());
    const gpu::Stream stream = must(server_->create_stream());
    must(server_->copy(stream.handle(), bytes.data(), on_device.data(), bytes.size()));
    const gpu::Event done = must(server_->create_event());
    must(server_->record(done, stream.handle()));
    must(server_->wait(done, kPatience));
    return bytes;
  }
  void expect_on_device(const Snapshot& snapshot, const Values& values) {
    ASSERT_TRUE(is_on_device(snapshot));
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(same_bytes(read(snapshot.device_bytes(i, server_->info().uuid)), values[i])) << "tensor " << i;
    }
  }
  std::uint64_t used() const {
    const PublisherStat stat = publisher_->stat();
    return stat.device_memory_bytes - stat.device_memory_free_bytes;
  }

  std::shared_ptr<gpu::Device> server_;
};

TEST_P(DeviceMemoryPublish, BothCopiesHaveWhatTheStreamHadQueued) {
  in_many_orders([&] {
    DeviceModel model(trainer_, kSizesOnDevice);
    const gpu::Stream step = must(trainer_->create_stream());
    take(model, step.handle());
    for (std::uint64_t number = 1; number <= 4 && !HasFailure(); ++number) {
      wait_for_room();
      hold(true);
      model.write(step.handle(), 100 + number);
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 1000 * number + i);
      const Values values = model.values();
      const auto receipt = publisher_->publish(model.views(step.handle()), {.step = number});
      ASSERT_TRUE(receipt) << receipt.error().message();
      // Written again, and so is their memory after they were freed in the stream's order.
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 5000 + i);
      hold(false);
      expect_served(receipt->version, values);
      expect_on_device(subscriber_->snapshot(), values);
    }
    EXPECT_EQ(publisher_->stat().device_memory_why, "");
    EXPECT_EQ(publisher_->stat().subscribers.at(0).channel, "cuda_ipc");
    server_.reset();
  });
}

TEST_P(DeviceMemoryPublish, AServersTensorsAreCopiedWithinTheDevice) {
  in_many_orders(
      [&] {
        // Many of them go by one launch.
        std::vector<std::uint64_t> sizes = kSizesOnDevice;
        for (std::uint64_t i = 0; i < 24; ++i) sizes.push_back(17 + 31 * i);
        DeviceModel model(trainer_, sizes);
        const gpu::Stream step = must(trainer_->create_stream());
        take(model, step.handle());
        const DeviceModel served(server_, sizes);
        std::vector<DeviceTensor> places;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          places.push_back({.spec = served.views({})[i].spec, .address = served.address(i)});
        }
        const auto tensors = must(DeviceTensors::bind(server_, places));
        const gpu::Stream stream = must(server_->create_stream());
        for (std::uint64_t seed = 1; seed < 4; ++seed) {
          publish(model, step.handle(), seed);
          must(tensors->refresh(subscriber_->snapshot(), stream.handle()));
          must(tensors->wait(kPatience));
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            EXPECT_TRUE(same_bytes(read({served.address(i), sizes[i]}), model.values()[i])) << "tensor " << i;
          }
        }
        EXPECT_EQ(detail::SlabRegistrations::of(server_)->count(), 0U) << "something was copied from host memory";
      },
      4);
  server_.reset();
}

TEST_P(DeviceMemoryPublish, AHeldVersionStaysAndWhatNobodyHoldsIsUsedAgain) {
  DeviceModel model(trainer_, kSizesOnDevice);
  const gpu::Stream step = must(trainer_->create_stream());
  take(model, step.handle());
  const Values values = model.values();
  const Snapshot kept = subscriber_->snapshot();
  for (std::uint64_t seed = 1; seed <= 12; ++seed) publish(model, step.handle(), seed);
  expect_on_device(kept, values);
  std::uint64_t of_one_version = 0;
  for (const std::uint64_t bytes : kSizesOnDevice) {
    of_one_version += bytes == 0 ? 0 : round_up(bytes, segment_alignment(bytes));
  }
  EXPECT_TRUE(eventually([&] { return used() == 2 * of_one_version; })) << used() << " of " << of_one_version;
}

TEST_P(DeviceMemoryPublish, AnUnchangedTensorKeepsItsSegment) {
  DeviceModel model(trainer_, kSizesOnDevice);
  const gpu::Stream step = must(trainer_->create_stream());
  take(model, step.handle());
  const Snapshot before = subscriber_->snapshot();
  const std::uint64_t brought = host_ != nullptr ? host_->bytes_to_host() : 0;
  model.write(step.handle(), 4, 99);
  const auto receipt = must(publisher_->publish(model.views(step.handle()), {}));
  expect_served(receipt.version, model.values());
  if (host_ != nullptr) {
    EXPECT_LT(host_->bytes_to_host() - brought, kSizesOnDevice[4] + 4096) << "equal tensors crossed the bus";
  }
  const Snapshot after = subscriber_->snapshot();
  expect_on_device(after, model.values());
  for (std::uint32_t i = 0; i < model.size(); ++i) {
    const gpu::Uuid& uuid = server_->info().uuid;
    EXPECT_EQ(after.device_bytes(i, uuid).data() == before.device_bytes(i, uuid).data(), i != 4) << "tensor " << i;
  }
  std::uint64_t expected = round_up(kSizesOnDevice[4], segment_alignment(kSizesOnDevice[4]));
  for (const std::uint64_t bytes : kSizesOnDevice) {
    expected += bytes == 0 ? 0 : round_up(bytes, segment_alignment(bytes));
  }
  EXPECT_TRUE(eventually([&] { return used() == expected; })) << used() << ", and not " << expected;
}

TEST_P(DeviceMemoryPublish, AboveTheLimitAWholeVersionGoesToHostMemory) {
  device_memory_ = {.bytes = std::uint64_t{8} << 20};
  open(seed_);
  DeviceModel model(trainer_, kLargeSizes);
  const gpu::Stream step = must(trainer_->create_stream());
  publish(model, step.handle(), 1);
  server_ = must(platform_->open(trainer_->info().uuid));
  {
    const Snapshot kept = subscriber_->snapshot();
    publish(model, step.handle(), 2);
    EXPECT_NE(publisher_->stat().device_memory_why.find("do not fit"), std::string::npos)
        << publisher_->stat().device_memory_why;
    EXPECT_FALSE(is_on_device(subscriber_->snapshot()));
    expect_served(2, model.values());
  }
  take(model, step.handle());
  expect_on_device(subscriber_->snapshot(), model.values());
  EXPECT_EQ(publisher_->stat().device_memory_why, "");
  EXPECT_LE(publisher_->stat().device_memory_bytes, std::uint64_t{8} << 20);
}

TEST_P(DeviceMemoryPublish, WhoDoesNotTakeItIsServedFromHostMemory) {
  DeviceModel model(trainer_, kSizesOnDevice);
  const gpu::Stream step = must(trainer_->create_stream());
  const auto plain = open_subscriber({.model = "demo", .directory = folder_->path()});
  take(model, step.handle());
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    const VersionNumber number = publish(model, step.handle(), seed);
    must(plain->wait_for(number, kPatience));
    const Snapshot snapshot = plain->snapshot();
    EXPECT_FALSE(is_on_device(snapshot));
    for (std::uint32_t i = 0; i < model.size(); ++i) EXPECT_TRUE(same_bytes(snapshot.bytes(i), model.values()[i]));
  }
}

TEST_P(DeviceMemoryPublish, ASubscriberTakesTheMemoryOfOneDevice) {
  if (must(platform_->devices()).size() < 2) GTEST_SKIP() << "this machine has one device";
  DeviceModel model(trainer_, kSizesOnDevice);
  const gpu::Stream step = must(trainer_->create_stream());
  const auto other = must(platform_->open(must(platform_->devices())[1].uuid));
  must(subscriber_->take_device_memory(other));
  EXPECT_EQ(gpu::code_of(subscriber_->take_device_memory(trainer_)), "failed_precondition");
  server_ = trainer_;
  for (std::uint64_t seed = 1; seed < 4; ++seed) {
    publish(model, step.handle(), seed);
    EXPECT_FALSE(is_on_device(subscriber_->snapshot()));
    expect_served(seed, model.values());
  }
}

TEST_P(DeviceMemoryPublish, ATensorOnAnotherDeviceSendsTheVersionToHostMemory) {
  if (must(platform_->devices()).size() < 2) GTEST_SKIP() << "this machine has one device";
  DeviceModel model(trainer_, kSizesOnDevice);
  const auto other_device = must(platform_->open(must(platform_->devices())[1].uuid));
  DeviceModel other(other_device, {1000, 20}, 1, "other");
  const gpu::Stream step = must(trainer_->create_stream());
  const gpu::Stream other_step = must(other_device->create_stream());
  model.write(step.handle(), 1);
  other.write(other_step.handle(), 2);
  std::vector<TensorView> views = model.views(step.handle());
  Values values = model.values();
  for (const TensorView& view : other.views(other_step.handle())) views.push_back(view);
  for (const auto& value : other.values()) values.push_back(value);
  const auto receipt = must(publisher_->publish(views, {}));
  expect_served(receipt.version, values);
  EXPECT_NE(publisher_->stat().device_memory_why.find("on GPU 0 and on GPU 1"), std::string::npos);
}

TEST_P(DeviceMemoryPublish, TensorsThatAreCapturedByLayerGoToHostMemory) {
  DeviceModel model(trainer_, kSizesOnDevice);
  const gpu::Stream step = must(trainer_->create_stream());
  take(model, step.handle());
  BoundTensors bound = publisher_->bind(model.views(step.handle()));
  model.write(step.handle(), 1);
  must(bound.begin());
  must(bound.capture(std::vector<std::uint32_t>{4, 6}));
  const auto receipt = must(bound.end({}));
  must(publisher_->wait_committed(receipt.version, kPatience));
  must(subscriber_->wait_for(receipt.version, kPatience));
  const Snapshot snapshot = subscriber_->snapshot();
  for (std::uint32_t i = 0; i < model.size(); ++i) {
    const Bytes on_device = snapshot.device_bytes(i, server_->info().uuid);
    EXPECT_EQ(on_device.empty(), i == 2 || i == 4 || i == 6) << "tensor " << i;
    if (!on_device.empty()) {
      EXPECT_TRUE(same_bytes(read(on_device), model.values()[i]));
    }
    EXPECT_TRUE(same_bytes(snapshot.bytes(i), model.values()[i]));
  }
}

TEST_P(DeviceMemoryPublish, OptionsThatContradictAreRefused) {
  const TemporaryFolder folder;
  const auto open_with = [&](DeviceMemory memory) {
    return gpu::code_of(
        Publisher::open({.model = "other", .hub_options = {.directory = folder.path()}, .device_memory = memory}));
  };
  EXPECT_EQ(open_with({.bytes = 1, .copies = 2}), "invalid_argument");
  EXPECT_EQ(open_with({.copies = 0.5}), "invalid_argument");
  EXPECT_EQ(open_with({.copies = std::numeric_limits<double>::quiet_NaN()}), "invalid_argument");
  EXPECT_EQ(open_with({.copies = 2}), "no error");
}

/// A door whose slabs of device memory are not what it says.
class LyingDeviceDoor : public DeviceMemoryPublish {
 protected:
  void admit(shm::SlabList device_slabs, bool takes) {
    const std::string path = folder_->path() + "/lying.door";
    door_ = must(shm::DoorHost::open(path));
    guest_ = must(shm::DoorGuest::knock(path, {.session = 9, .token = 1}));
    if (takes) guest_->take_device(trainer_);
    ASSERT_TRUE(eventually([&] {
      for (const auto& knocked : door_->poll().knocked) {
        door_->admit(knocked.door, 9, std::make_shared<shm::SlabList>(),
                     std::make_shared<shm::SlabList>(std::move(device_slabs)));
        door_->lend_device_slabs(9);
        return true;
      }
      return false;
    }));
  }
  std::unique_ptr<shm::DoorHost> door_;
  std::unique_ptr<shm::DoorGuest> guest_;
};

TEST_P(LyingDeviceDoor, ASlabThatCannotBeMappedIsDoneWithout) {
  const gpu::Memory memory = must(trainer_->allocate(4096));
  const FileDescriptor real = must(trainer_->export_slab(memory));
  const FileDescriptor file(::memfd_create("no slab", MFD_CLOEXEC));
  const std::uint64_t bytes = memory.bytes();
  admit({{.descriptor = real.get(), .bytes = bytes},
         {.descriptor = real.get(), .bytes = bytes + trainer_->info().granularity},
         {.descriptor = real.get(), .bytes = bytes + 1},
         {.descriptor = file.get(), .bytes = bytes}},
        /*takes=*/true);
  must(guest_->receive());
  ASSERT_EQ(guest_->device_slabs().size(), 4U);
  EXPECT_NE(guest_->device_slabs()[0], nullptr);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(guest_->device_slabs()[i], nullptr) << i;
}

TEST_P(LyingDeviceDoor, SlabsThatNobodyAskedForAreAnError) {
  const gpu::Memory memory = must(trainer_->allocate(4096));
  const FileDescriptor real = must(trainer_->export_slab(memory));
  admit({{.descriptor = real.get(), .bytes = memory.bytes()}}, /*takes=*/false);
  EXPECT_EQ(gpu::code_of(guest_->receive()), "corrupt");
}

TEST_P(LyingDeviceDoor, AGrantIsCheckedAgainstTheSlabs) {
  const gpu::Memory memory = must(trainer_->allocate(4096));
  const auto slab =
      std::make_shared<const Slab>(must(Slab::import(*trainer_, must(trainer_->export_slab(memory)), memory.bytes())));
  const auto host = std::make_shared<const Slab>(must(Slab::create("host", {.bytes = 4096, .lock = false})));
  const auto architecture = must(Architecture::guess_chain(
      {{.name = "a", .dtype = DType::u8, .shape = {100}}, {.name = "b", .dtype = DType::u8, .shape = {200}}}));
  const VersionId id{.run = {.high = 1, .low = 2}, .incarnation = 3, .sequence = 4};
  const Manifest manifest{.name = {.model = "demo", .number = 1},
                          .id = id,
                          .architecture = architecture,
                          .owners = OwnerMap::all_written_by(id, 2),
                          .digests = std::vector<Digest>(2)};
  const protocol::Grant good{
      .number = 1,
      .manifest = encode(manifest),
      .architecture = {architecture->encoded().begin(), architecture->encoded().end()},
      .places = {{.slab = 0, .offset = 0, .bytes = 100}, {.slab = 0, .offset = 128, .bytes = 200}},
      .slab_bytes = {host->bytes()},
      .device_places = {{.slab = 0, .offset = 256, .bytes = 100}, {}},
      .device_slab_bytes = {slab->bytes()}};
  const auto made = [&](const protocol::Grant& grant, const detail::DeviceSlabs& on_device) {
    detail::ArchitectureCache cache;
    return detail::make_served_version("demo", grant, {host}, cache, on_device);
  };
  const detail::DeviceSlabs mapped{.slabs = {slab}, .device = trainer_->info().uuid};
  const auto version = must(made(good, mapped));
  EXPECT_EQ(version->device_tensors.at(0).data(), slab->memory().data() + 256);
  EXPECT_TRUE(version->device_tensors.at(1).empty()) << "the grant has no place of it there";
  const auto unmapped = must(made(good, {.slabs = {nullptr}, .device = trainer_->info().uuid}));
  EXPECT_TRUE(unmapped->device_tensors.empty());
  EXPECT_FALSE(unmapped->device) << "nothing of it lies there";
  EXPECT_TRUE(must(made(good, {}))->device_tensors.empty());

  const auto refused = [&](const std::function<void(protocol::Grant&)>& lie) {
    protocol::Grant grant = good;
    lie(grant);
    return gpu::code_of(made(grant, mapped));
  };
  EXPECT_EQ(refused([](auto& grant) { grant.device_places[0].offset = 4096; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_places[0].offset = ~std::uint64_t{63}; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_places[0].offset = 3; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_places[0].bytes = 99; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_places[0].slab = 1; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_slab_bytes[0] += 4096; }), "corrupt");
  EXPECT_EQ(refused([](auto& grant) { grant.device_places.pop_back(); }), "corrupt");
}

/// A trainer, or a server, in a process of its own.
class DeviceMemoryProcess : public DeviceMemoryPublish {
 protected:
  AnsweringProcess peer(const std::string& role) {
    return AnsweringProcess({built("tests/gpu_device_peer"), role, folder_->path(), GetParam().name});
  }
};

TEST_P(DeviceMemoryProcess, ATrainerMayDieAmidACopy) {
  publisher_.reset();
  server_ = must(platform_->open(trainer_->info().uuid));
  must(subscriber_->take_device_memory(server_));
  AnsweringProcess trainer = peer("publish");
  ASSERT_EQ(trainer.hear(), "ready");
  std::uint64_t seed = 0;
  ASSERT_TRUE(eventually([&] {
    ++seed;
    EXPECT_EQ(trainer.ask("publish " + std::to_string(seed)), "version " + std::to_string(seed));
    must(subscriber_->wait_for(seed, kPatience));
    return is_on_device(subscriber_->snapshot());
  }));
  const DeviceModel served(server_, kPeerSizes);
  std::vector<DeviceTensor> places;
  for (std::size_t i = 0; i < served.size(); ++i) {
    places.push_back({.spec = served.views({})[i].spec, .address = served.address(i)});
  }
  const auto tensors = must(DeviceTensors::bind(server_, places));
  const gpu::Stream stream = must(server_->create_stream());
  const Snapshot kept = subscriber_->snapshot();
  hold(true);
  must(tensors->refresh(subscriber_->snapshot(), stream.handle()));
  trainer.kill();
  hold(false);
  must(tensors->wait(kPatience));
  const Values values = peer_values(trainer_, seed);
  for (std::size_t i = 0; i < served.size(); ++i) {
    EXPECT_TRUE(same_bytes(read({served.address(i), kPeerSizes[i]}), values[i])) << "tensor " << i;
  }
  subscriber_.reset();
  expect_on_device(kept, values);
}

TEST_P(DeviceMemoryProcess, TheHoldsOfAKilledServerEnd) {
  DeviceModel model(trainer_, kPeerSizes);
  const gpu::Stream step = must(trainer_->create_stream());
  AnsweringProcess server = peer("serve");
  ASSERT_EQ(server.hear(), "ready");
  std::uint64_t seed = 0;
  std::string pinned;
  ASSERT_TRUE(eventually([&] {
    const VersionNumber number = publish(model, step.handle(), ++seed);
    pinned = server.ask("pin " + std::to_string(number));
    return pinned.ends_with("on the device");
  })) << pinned;
  const std::uint64_t of_one_version = [&] {
    std::uint64_t bytes = 0;
    for (const std::uint64_t size : kPeerSizes) bytes += round_up(size, segment_alignment(size));
    return bytes;
  }();
  publish(model, step.handle(), ++seed);
  EXPECT_TRUE(eventually([&] { return used() == 2 * of_one_version; })) << used() << ", " << of_one_version;
  server.kill();
  EXPECT_TRUE(eventually([&] { return used() == of_one_version; })) << used() << ", " << of_one_version;
}

std::vector<gpu::EngineCase> device_memory_cases() {
  std::vector<gpu::EngineCase> cases = {{.name = "host", .is_host = true}};
  if (gpu::open_driver_platform()) cases.push_back({.name = "driver", .is_host = false});
  return cases;
}

std::string name_of_case(const testing::TestParamInfo<gpu::EngineCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Engines, DeviceMemoryPublish, testing::ValuesIn(device_memory_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Engines, LyingDeviceDoor, testing::ValuesIn(device_memory_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Engines, DeviceMemoryProcess, testing::ValuesIn(device_memory_cases()), name_of_case);

}  // namespace
}  // namespace freshet::test
