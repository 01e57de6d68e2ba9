// SPDX-License-Identifier: Apache-2.0
/// Serving from a device when something fails.

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#include "tests/support/answering_process.h"
#include "tests/support/this_build.h"
#include "tests/transport/subscribe/device/serving_lab.h"

namespace freshet::gpu {
namespace {

/// Cases that make the host device fail in a way of its own.
class HostServing : public GpuServing {};
INSTANTIATE_TEST_SUITE_P(Faults, HostServing, testing::Values(EngineCase{.name = "host", .is_host = true}));

/// Cases with a trainer in another process.
class GpuServingProcess : public GpuServing {};
INSTANTIATE_TEST_SUITE_P(Host, GpuServingProcess, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuServingProcess, testing::ValuesIn([]() -> std::vector<EngineCase> {
                           if (!open_driver_platform()) return {};
                           return {{.name = "driver", .is_host = false}};
                         }()));

TEST_P(GpuServing, ASlabIsRegisteredOnceForAllTables) {
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory one = server_of(model);
  const ServerMemory two = server_of(model);
  const auto registrations = detail::SlabRegistrations::of(device_);
  const Stream stream = must(device_->create_stream());
  {
    const auto first = bind(one);
    const auto second = bind(two);
    for (std::uint64_t version = 2; version < 6; ++version) {
      must(first->refresh(subscriber_->snapshot(), stream.handle()));
      const std::size_t registered = registrations->count();
      EXPECT_GE(registered, 1U);
      EXPECT_LE(registered, subscriber_->snapshot().pieces().size());
      must(second->refresh(subscriber_->snapshot(), stream.handle()));
      EXPECT_EQ(registrations->count(), registered);
      must(first->wait(kPatience));
      must(second->wait(kPatience));
      model.train(version);
      publish(model);
    }
  }
  EXPECT_EQ(detail::SlabRegistrations::of(device_), registrations);
  EXPECT_NE(detail::SlabRegistrations::of(framework()), registrations);
}

TEST_P(GpuServing, ARegistrationEndsWhenItsSlabGoes) {
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  const auto registrations = detail::SlabRegistrations::of(device_);
  const auto tensors = bind(server);
  const Stream stream = must(device_->create_stream());
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  std::weak_ptr<const void> gone = subscriber_->snapshot().pieces().at(0).mapping;
  publisher_ = nullptr;
  serve(test::open_publisher(publisher_options()), std::move(subscriber_));
  model.train(2);
  publish(model);
  // The subscriber lets go of the older version on its own thread.
  ASSERT_TRUE(test::eventually([&] { return gone.use_count() == 2; }))
      << "the registration and its user keep the mapping";
  EXPECT_EQ(registrations->count(), 1U);
  EXPECT_TRUE(test::eventually([&] {
    refresh(tensors, stream);
    return gone.expired();
  }));
  EXPECT_EQ(registrations->count(), 1U) << "the new slab's";
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(HostServing, TwoDevicesLetGoOfASlabThatNobodyElseKeeps) {
  open_host({.seed = seed_, .devices = 2});
  const auto other = must(platform_->open(host_device_uuid(1)));
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  const ServerMemory of_other(*other, model);
  const auto first = bind(server);
  const auto second = must(DeviceTensors::bind(other, of_other.tensors()));
  const Stream stream = must(device_->create_stream());
  const Stream stream_of_other = must(other->create_stream());
  const auto refresh_both = [&] {
    must(first->refresh(subscriber_->snapshot(), stream.handle()));
    must(first->wait(kPatience));
    must(second->refresh(subscriber_->snapshot(), stream_of_other.handle()));
    must(second->wait(kPatience));
  };
  refresh_both();
  const std::weak_ptr<const void> gone = subscriber_->snapshot().pieces().at(0).mapping;
  publisher_ = nullptr;
  serve(test::open_publisher(publisher_options()), std::move(subscriber_));
  model.train(2);
  publish(model);
  EXPECT_TRUE(test::eventually([&] {
    refresh_both();
    return gone.expired();
  }));
}

/// How many slabs the version's tensors lie in. A busy publisher adds slabs, and names those too where none lies yet.
std::size_t slabs_with_tensors(const Snapshot& snapshot) {
  const std::vector<Snapshot::Piece> slabs = snapshot.pieces();
  return static_cast<std::size_t>(std::ranges::count_if(slabs, [&](const Snapshot::Piece& slab) {
    for (std::uint32_t tensor = 0; tensor < snapshot.manifest().architecture->tensors().size(); ++tensor) {
      const Bytes bytes = snapshot.bytes(tensor);
      if (!bytes.empty() && slab.memory.data() <= bytes.data() &&
          bytes.data() < slab.memory.data() + slab.memory.size())
        return true;
    }
    return false;
  }));
}

/// A driver registers memory for all devices, and refuses it to the second that asks.
TEST_P(HostServing, TwoDevicesShareARegistrationWhicheverMadeIt) {
  open_host({.seed = seed_, .devices = 2});
  const auto other = must(platform_->open(host_device_uuid(1)));
  Trained model(mixed_sizes());
  publish(model);
  const Bytes slab = subscriber_->snapshot().pieces().at(0).memory;
  const auto is_registered = [&] { return must(device_->describe(slab.data())).kind == MemoryKind::pinned; };
  for (const bool is_made_by_other : {true, false}) {
    const ServerMemory server = server_of(model);
    const ServerMemory of_other(*other, model);
    const auto stays = bind(server);
    auto ends_first = must(DeviceTensors::bind(other, of_other.tensors()));
    const Stream stream = must(device_->create_stream());
    const Stream stream_of_other = must(other->create_stream());
    if (is_made_by_other) refresh(ends_first, stream_of_other);
    refresh(stays, stream);
    if (!is_made_by_other) refresh(ends_first, stream_of_other);
    for (const auto& device : {device_, other}) {
      EXPECT_EQ(detail::SlabRegistrations::of(device)->count(), slabs_with_tensors(subscriber_->snapshot()))
          << "small tensors are one launch";
    }
    ends_first = nullptr;
    EXPECT_TRUE(is_registered()) << "the other one's copies run";
    must(stays->wait(kPatience));
    expect_holds(server, model);
    model.train(is_made_by_other ? 2 : 3);
    publish(model);
    refresh(stays, stream);
    must(stays->wait(kPatience));
    expect_holds(server, model);
  }
  EXPECT_FALSE(is_registered()) << "the last server has ended";
}

/// Two threads that begin and end the registrations of one slab, of two devices, or of one.
class Meeting {
 public:
  static constexpr int kTimes = 300;
  explicit Meeting(const Snapshot& snapshot) : slab_(snapshot.pieces().at(0)) {}
  /// What each ensure() answered: "true", "false", or its code.
  std::set<std::string> of(detail::SlabRegistrations& one, detail::SlabRegistrations& other) {
    return of([&] { return one.ensure(slab_); }, [&] { return other.ensure(slab_); });
  }
  /// Registrations of their own, that end each time.
  std::set<std::string> of(const std::shared_ptr<Device>& one, const std::shared_ptr<Device>& other) {
    return of([&] { return detail::SlabRegistrations(one).ensure(slab_); },
              [&] { return detail::SlabRegistrations(other).ensure(slab_); });
  }

 private:
  template <typename One, typename Other>
  static std::set<std::string> of(One one, Other other) {
    std::set<std::string> of_other;
    std::jthread thread([&] { of_other = answers(other); });
    std::set<std::string> all = answers(one);
    thread.join();
    all.merge(of_other);
    return all;
  }
  template <typename Ensure>
  static std::set<std::string> answers(Ensure ensure) {
    std::set<std::string> answers;
    for (int time = 0; time < kTimes; ++time) {
      const Result<bool> is_registered = ensure();
      answers.insert(!is_registered ? code_of(is_registered) : *is_registered ? "true" : "false");
    }
    return answers;
  }

  const Snapshot::Piece slab_;
};

TEST_P(HostServing, ASlabOfTheProgramIsRefusedToTwoThatMeet) {
  open_host({.seed = seed_, .devices = 2});
  const auto other = must(platform_->open(host_device_uuid(1)));
  publish(Trained(mixed_sizes()));
  const Bytes slab = subscriber_->snapshot().pieces().at(0).memory;
  const Registration theirs = must(framework()->register_host(slab.data(), slab.size(), HostAccess::read_only));
  Meeting meeting(subscriber_->snapshot());
  detail::SlabRegistrations here(device_);
  detail::SlabRegistrations there(other);
  EXPECT_EQ(meeting.of(here, here), std::set<std::string>{"failed_precondition"});
  EXPECT_EQ(meeting.of(here, there), std::set<std::string>{"failed_precondition"});
}

TEST_P(HostServing, ARegistrationThatEndsIsNoOtherPartsOfTheProgram) {
  open_host({.seed = seed_, .devices = 2});
  const auto other = must(platform_->open(host_device_uuid(1)));
  publish(Trained(mixed_sizes()));
  Meeting meeting(subscriber_->snapshot());
  for (const auto& sharer : {other, device_}) {
    const auto answers = meeting.of(device_, sharer);
    EXPECT_TRUE(answers.contains("true"));
    EXPECT_FALSE(answers.contains("failed_precondition")) << "it was refused as somebody else's";
  }
}

/// The driver keeps what a lost device registered, and the other devices copy as they can.
TEST_P(HostServing, ASlabOfALostDeviceIsCopiedToTheOther) {
  open_host({.seed = seed_, .devices = 2});
  const auto other = must(platform_->open(host_device_uuid(1)));
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  auto lost = bind(server);
  const Stream stream = must(device_->create_stream());
  refresh(lost, stream);
  host().strike(0);
  EXPECT_EQ(code_of(lost->wait(kPatience)), "failed_precondition");
  lost = nullptr;
  device_ = other;
  const ServerMemory of_other = server_of(model);
  const auto tensors = bind(of_other);
  const Stream stream_of_other = must(other->create_stream());
  for (std::uint64_t version = 2; version < 4; ++version) {
    refresh(tensors, stream_of_other);
    if (version == 2) {
      EXPECT_EQ(detail::SlabRegistrations::of(other)->count(), 0U) << "the driver keeps the lost device's";
    }
    must(tensors->wait(kPatience));
    expect_holds(of_other, model);
    model.train(version);
    publish(model);
  }
}

/// The driver may know pages that lay at that address before.
TEST_P(GpuServing, ASlabThatTheProgramRegisteredIsRefusedUntilItLetsGo) {
  Trained model(mixed_sizes());
  publish(model);
  const auto theirs = framework();
  const Bytes slab = subscriber_->snapshot().pieces().at(0).memory;
  Registration registration = must(theirs->register_host(slab.data(), slab.size(), HostAccess::read_only));
  const ServerMemory server = server_of(model);
  const auto tensors = bind(server);
  const Stream stream = must(device_->create_stream());
  for (int time = 0; time < 2; ++time) {
    const auto refused = tensors->refresh(subscriber_->snapshot(), stream.handle());
    EXPECT_EQ(code_of(refused), "failed_precondition");
    EXPECT_THAT(words_of(refused), testing::HasSubstr("might read pages that are not the version's"));
    EXPECT_FALSE(tensors->is_mixed());
    EXPECT_EQ(tensors->pins(), 0U);
  }
  must(registration.end(kPatience));
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
  EXPECT_EQ(detail::SlabRegistrations::of(device_)->count(), 1U);
}

TEST_P(GpuServingProcess, ATrainerMayDieAmidACopy) {
  subscriber_ = nullptr;
  publisher_ = nullptr;
  in_many_orders(
      [&] {
        const TemporaryFolder folder;
        test::AnsweringProcess trainer(
            {test::built("tests/gpu_stream_peer"), "publish", "demo", folder.path(), "40", "3001"});
        ASSERT_EQ(trainer.hear(), "ready");
        subscriber_ = test::open_subscriber({.model = "demo", .directory = folder.path()});
        ASSERT_EQ(trainer.ask("publish 1"), "version 1");
        must(subscriber_->wait_for(1, test::kPatience));
        const test::StampedModel values(40, 3001);
        const Memory memory = must(device_->allocate(values.bytes()));
        std::vector<DeviceTensor> places;
        for (const TensorView& view : values.views()) {
          places.push_back({.spec = view.spec, .address = memory.address() + places.size() * view.data.size()});
        }
        const auto tensors = must(DeviceTensors::bind(device_, places));
        const Stream stream = must(device_->create_stream());
        refresh(tensors, stream);
        trainer.kill();
        subscriber_ = nullptr;
        finish(stream.handle());
        test::StampedModel expected(40, 3001);
        expected.stamp_all(1);
        std::uint64_t at = 0;
        for (const TensorView& view : expected.views()) {
          EXPECT_TRUE(test::same_bytes(read(memory.address() + at, view.data.size()), view.data));
          at += view.data.size();
        }
      },
      orders(4));
}

TEST_P(HostServing, WithoutARegistrationTheCopiesAreRightAndTheReasonIsSaidOnce) {
  Trained model(mixed_sizes());
  publish(model);
  open_host({.seed = seed_, .registers_read_only = false});
  const ServerMemory one = server_of(model);
  const ServerMemory two = server_of(model);
  const Stream stream = must(device_->create_stream());
  const HeardLog log;
  const auto first = bind(one);
  const auto second = bind(two);
  for (std::uint64_t version = 2; version < 5; ++version) {
    must(first->refresh(subscriber_->snapshot(), stream.handle()));
    must(second->refresh(subscriber_->snapshot(), stream.handle()));
    must(first->wait(kPatience));
    must(second->wait(kPatience));
    expect_holds(one, model);
    expect_holds(two, model);
    model.train(version);
    publish(model);
  }
  EXPECT_EQ(log.count("cannot be registered with device"), 1U);
}

TEST_P(HostServing, ADeviceWithoutKernelsForHostMemoryCopiesEachTensorAlone) {
  for (const HostOptions& options :
       {HostOptions{.seed = seed_, .compute_major = 7}, HostOptions{.seed = seed_, .kernels_reach_host = false}}) {
    Trained model(mixed_sizes());
    publish(model);
    open_host(options);
    const ServerMemory server = server_of(model);
    const auto tensors = bind(server);
    const Stream stream = must(device_->create_stream());
    for (std::uint64_t version = 2; version < 4; ++version) {
      refresh(tensors, stream);
      must(tensors->wait(kPatience));
      expect_holds(server, model);
      model.train(version);
      publish(model);
    }
  }
}

TEST_P(HostServing, AStreamThatIsCapturedIsRefusedBeforeAnythingIsQueued) {
  Trained model(mixed_sizes());
  const auto [server, tensors, stream] = bound_to(model);
  host().capture(stream.handle(), true);
  for (const auto& refused : {Status(tensors->use(stream.handle())),
                              Status(tensors->refresh(subscriber_->snapshot(), stream.handle()).map([](auto) {}))}) {
    EXPECT_EQ(code_of(refused), "failed_precondition");
    EXPECT_THAT(words_of(refused), testing::HasSubstr("captured into a CUDA graph"));
  }
  EXPECT_EQ(tensors->pins(), 0U);
  EXPECT_FALSE(tensors->is_mixed());
  EXPECT_TRUE(test::same_bytes(read(server.address(), server.bytes()), server.blank()));
  host().capture(stream.handle(), false);
  refresh(tensors, stream);
  host().capture(stream.handle(), true);
  host().hold(true);
  EXPECT_EQ(tensors->pins(), 1U) << "its copies have not landed";
  host().hold(false);
  host().capture(stream.handle(), false);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(HostServing, AStreamThatIsGoneHarmsNoLaterRefresh) {
  Trained model(mixed_sizes());
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  EXPECT_EQ(code_of(tensors->use(StreamHandle::of(0xdead))), "invalid_argument");
  must(tensors->use(must(device_->create_stream()).handle()));
  for (std::uint64_t version = 2; version < 4; ++version) {
    model.train(version);
    publish(model);
    refresh(tensors, stream);
    must(tensors->wait(kPatience));
    expect_holds(server, model);
  }
}

TEST_P(HostServing, StreamsThatWaitForARefreshAreBounded) {
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  const auto tensors = bind(server);
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < DeviceTensors::kUsersMax; ++i) {
    streams.push_back(must(device_->create_stream()));
    must(tensors->use(streams.back().handle()));
  }
  must(tensors->use(streams.front().handle()));
  const Stream other = must(device_->create_stream());
  EXPECT_EQ(code_of(tensors->use(other.handle())), "out_of_space");
  must(tensors->refresh(subscriber_->snapshot(), other.handle()));
  must(tensors->use(other.handle()));
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(HostServing, ADeviceWithoutAByteLeftIsRefreshed) {
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  const auto tensors = bind(server);
  const Memory all = must(device_->allocate(must(device_->room()).free));
  ASSERT_EQ(must(device_->room()).free, 0U);
  const Stream stream = must(device_->create_stream());
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(HostServing, ALostDeviceIsSaidAndLetsGoOfTheVersion) {
  Trained model(mixed_sizes());
  publish(model);
  const ServerMemory server = server_of(model);
  const HeardLog log;
  auto tensors = bind(server);
  const Stream stream = must(device_->create_stream());
  auto snapshot = std::make_shared<const Snapshot>(subscriber_->snapshot());
  const std::weak_ptr<const Snapshot> pinned = snapshot;
  must(tensors->refresh(std::move(snapshot), stream.handle()));
  host().strike(0);
  EXPECT_EQ(code_of(tensors->wait(kPatience)), "failed_precondition");
  EXPECT_EQ(tensors->pins(), 0U);
  EXPECT_TRUE(pinned.expired());
  model.train(2);
  publish(model);
  const auto refused = tensors->refresh(subscriber_->snapshot(), stream.handle());
  EXPECT_EQ(code_of(refused), "failed_precondition");
  EXPECT_THAT(words_of(refused), testing::HasSubstr("is lost to this process"));
  EXPECT_EQ(code_of(tensors->use(StreamHandle{})), "failed_precondition");
  tensors = nullptr;
  EXPECT_EQ(log.count("lost to this process"), 1U);
}

/// The memory of one tensor is taken away, and given back: between the two, its copy fails.
TEST_P(HostServing, TheNextRefreshCompletesOneThatFailed) {
  constexpr std::uint64_t kPageBytes = 4096;
  Trained model({100, 200, kPageBytes, 400, 500});
  publish(model);
  const ServerMemory server = server_of(model);
  std::vector<DeviceTensor> places = server.tensors();
  Memory taken = must(device_->allocate(kPageBytes));
  std::byte* const page = taken.address();
  places[2].address = page;
  const auto tensors = must(DeviceTensors::bind(device_, places));
  const Stream stream = must(device_->create_stream());
  const auto map = [&](int protection) {
    ASSERT_EQ(::mmap(page, kPageBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), page);
  };
  taken = Memory();
  map(PROT_READ);
  Registration read_only = must(device_->register_host(page, kPageBytes, HostAccess::read_only));
  for (int time = 0; time < 2; ++time) {
    const auto failed = tensors->refresh(subscriber_->snapshot(), stream.handle());
    EXPECT_THAT(words_of(failed), testing::HasSubstr("copy demo@1 to device: tensor t2: "));
    EXPECT_TRUE(tensors->is_mixed());
    EXPECT_EQ(tensors->version(), 0U);
    EXPECT_TRUE(tensors->holds(0) && tensors->holds(1));
    EXPECT_FALSE(tensors->holds(2) || tensors->holds(3) || tensors->holds(4));
  }
  must(tensors->wait(kPatience));
  must(read_only.end(kPatience));
  map(PROT_READ | PROT_WRITE);
  const Stream other = must(device_->create_stream());
  const DeviceRefresh completed = must(tensors->refresh(subscriber_->snapshot(), other.handle()));
  EXPECT_EQ(completed.tensors, 3U);
  EXPECT_EQ(completed.version, 1U);
  EXPECT_FALSE(tensors->is_mixed());
  must(tensors->wait(kPatience));
  EXPECT_TRUE(test::same_bytes({page, kPageBytes}, model.value(2)));
  for (const std::size_t tensor : {0, 1, 3, 4}) {
    EXPECT_TRUE(test::same_bytes(read(server.address(tensor), model.value(tensor).size()), model.value(tensor)));
  }
  ::munmap(page, kPageBytes);
}

}  // namespace
}  // namespace freshet::gpu
