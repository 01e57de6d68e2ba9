// SPDX-License-Identifier: Apache-2.0
// What goes wrong with tensors on a GPU: one error names it, the served version stays, and the next publish has all
// changes.

#include <sys/mman.h>

#include <vector>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "tests/transport/publish/gpu/device_lab.h"
#include "transport/publish/capture.h"
#include "transport/publish/device_copier.h"

namespace freshet::test {
namespace {

using gpu::code_of;
using gpu::must;
using gpu::words_of;
using testing::HasSubstr;

/// On the host device alone: a real one would be lost, or has no such fault.
class DeviceFaults : public DeviceLab {
 protected:
  std::unique_ptr<DeviceModel> serve_first() {
    auto model = std::make_unique<DeviceModel>(trainer_, std::vector<std::uint64_t>{5000, 77, 40'000});
    model->write({}, 1);
    const auto first = publisher_->publish(model->views({}), {});
    EXPECT_TRUE(first) << words_of(first);
    expect_served(1, model->values());
    return model;
  }
  /// A publish that was refused: no number was taken, and all changes come with the next one.
  void expect_unharmed(DeviceModel& model) {
    EXPECT_EQ(subscriber_->snapshot().version(), 1U);
    const auto next = publisher_->publish(model.views({}), {.changed = Changed::only({})});
    ASSERT_TRUE(next) << words_of(next);
    expect_served(2, model.values());
  }
};

class LogLines {
 public:
  LogLines() {
    set_log_hook([this](LogLevel, const std::string& line) {
      MutexLock lock(mutex_);
      lines_.push_back(line);
    });
  }
  ~LogLines() { set_log_hook(nullptr); }
  std::size_t with(const std::string& words) {
    MutexLock lock(mutex_);
    return static_cast<std::size_t>(
        std::ranges::count_if(lines_, [&](const std::string& line) { return line.find(words) != std::string::npos; }));
  }

 private:
  Mutex mutex_;
  std::vector<std::string> lines_ FRESHET_GUARDED_BY(mutex_);
};

TEST_P(DeviceFaults, NoDriver) {
  if (gpu::open_driver_platform()) GTEST_SKIP() << "this machine has a driver";
  auto publisher = open_publisher({.model = "other", .hub_options = {.directory = folder_->path()}});
  const auto bytes = seeded_bytes(100, 1);
  TensorView view{.spec = {.name = "a.w", .dtype = DType::u8, .shape = {100}}, .data = bytes};
  view.place = {.memory = MemoryKind::device};
  const auto refused = publisher->publish({{view}}, {});
  EXPECT_EQ(code_of(refused), "unavailable");
  EXPECT_THAT(words_of(refused), HasSubstr("copy from GPU 0"));
  EXPECT_THAT(words_of(refused), HasSubstr("libcuda.so.1"));
  view.place = {};
  const auto receipt = publisher->publish({{view}}, {.sync = true});
  ASSERT_TRUE(receipt) << words_of(receipt);
  EXPECT_EQ(receipt->version, 1U);
}

TEST_P(DeviceFaults, AddressesThatAreNotThatDevices) {
  const auto model = serve_first();
  const auto elsewhere = seeded_bytes(5000, 9);
  const DeviceModel second(must(platform_->open(gpu::host_device_uuid(1))), {5000}, 1);
  model->write({}, 2);
  const auto refused = [&](auto change) {
    auto views = model->views({});
    change(views[0]);
    return publisher_->publish(views, {});
  };
  const auto host = refused([&](TensorView& view) { view.data = elsewhere; });
  EXPECT_EQ(code_of(host), "invalid_argument");
  EXPECT_THAT(words_of(host), HasSubstr("tensor layer0.w on GPU 0: the driver knows its address as host memory"));
  const auto other = refused([&](TensorView& view) { view.data = {second.address(0), 5000}; });
  EXPECT_EQ(code_of(other), "invalid_argument");
  EXPECT_THAT(words_of(other), HasSubstr("tensor layer0.w on GPU 0: its memory is that of device GPU-"));
  for (const int device : {2, -1}) {
    const auto none = refused([&](TensorView& view) { view.place.device = device; });
    EXPECT_EQ(code_of(none), "invalid_argument");
    EXPECT_THAT(words_of(none), HasSubstr("this process sees 2 of them"));
  }
  const auto stream = refused([&](TensorView& view) { view.place.stream = 0xdead; });
  EXPECT_EQ(code_of(stream), "invalid_argument");
  EXPECT_THAT(words_of(stream), HasSubstr("no such stream"));
  const auto kind = refused([&](TensorView& view) { view.place.memory = static_cast<MemoryKind>(9); });
  EXPECT_EQ(code_of(kind), "unsupported");
  expect_unharmed(*model);
}

TEST_P(DeviceFaults, ALengthBeyondItsMemory) {
  DeviceModel model(trainer_, {5000});
  auto views = model.views({});
  views[0].spec.shape = {std::uint64_t{1} << 20};
  views[0].data = {model.address(0), std::size_t{1} << 20};
  const auto refused = publisher_->publish(views, {});
  EXPECT_EQ(code_of(refused), "invalid_argument");
  EXPECT_THAT(words_of(refused), HasSubstr("tensor layer0.w on GPU 0"));
  EXPECT_THAT(words_of(refused), HasSubstr("past its memory's end"));
}

TEST_P(DeviceFaults, ADeviceThatIsLostAmidACapture) {
  LogLines log;
  const auto model = serve_first();
  hold(true);
  model->write({}, 2);
  const auto receipt = publisher_->publish(model->views({}), {});
  ASSERT_TRUE(receipt) << words_of(receipt);
  host_->strike(0);
  hold(false);
  const auto report = publisher_->wait_committed(receipt->version, kPatience);
  EXPECT_EQ(code_of(report), "failed_precondition");
  EXPECT_THAT(words_of(report), HasSubstr("publish demo@2: copy the tensors"));
  EXPECT_THAT(words_of(report), HasSubstr("lost to this process"));
  EXPECT_EQ(log.with("publish demo@2"), 1U) << "a loop that does not wait hears of it";
  const auto again = publisher_->publish(model->views({}), {});
  EXPECT_EQ(code_of(again), "failed_precondition");
  EXPECT_EQ(subscriber_->snapshot().version(), 1U);
  // What the program saved to host memory can still be published, and all of it is.
  const Values values = model->values();
  auto views = model->views({});
  for (std::size_t i = 0; i < views.size(); ++i) {
    views[i].data = values[i];
    views[i].place = {};
  }
  const auto saved = publisher_->publish(views, {.changed = Changed::only({})});
  ASSERT_TRUE(saved) << words_of(saved);
  expect_served(saved->version, values);
}

/// Other programs may take all of it. The device arena then has no room, whatever its limit says.
TEST_P(DeviceFaults, ADeviceThatIsFullLeavesTheVersionToHostMemory) {
  device_memory_ = {.copies = 4};
  open(seed_);
  DeviceModel model(trainer_, {std::uint64_t{3} << 20, 100'003});
  const gpu::Stream step = must(trainer_->create_stream());
  std::vector<gpu::Memory> others;
  for (std::uint64_t bytes = std::uint64_t{1} << 29; bytes >= 4096;) {
    auto more = trainer_->allocate(bytes);
    if (!more) {
      ASSERT_EQ(more.error().code(), Code::out_of_space) << more.error().message();
      bytes /= 2;
      continue;
    }
    others.push_back(std::move(*more));
  }
  for (std::uint64_t seed = 1; seed <= 3 && !HasFailure(); ++seed) {
    if (seed == 3) others.clear();
    model.write(step.handle(), seed);
    const auto receipt = publisher_->publish(model.views(step.handle()), {.step = seed});
    ASSERT_TRUE(receipt) << receipt.error().message();
    expect_served(receipt->version, model.values());
    EXPECT_EQ(publisher_->stat().device_memory_why.empty(), seed == 3) << publisher_->stat().device_memory_why;
  }
}

TEST_P(DeviceFaults, AnArenaWithoutRoomSkips) {
  open(seed_, 300'000);
  DeviceModel model(trainer_, {90'000, 5000});
  std::vector<Snapshot> pinned;
  for (std::uint64_t number = 1; number <= 6; ++number) {
    model.write({}, number);
    const auto receipt = publisher_->publish(model.views({}), {});
    if (!receipt) {
      EXPECT_EQ(code_of(receipt), "out_of_space");
      EXPECT_EQ(publisher_->stat().versions_skipped, 1U);
      break;
    }
    expect_served(number, model.values());
    pinned.push_back(subscriber_->snapshot());
  }
  EXPECT_GE(pinned.size(), 2U);
  EXPECT_LT(pinned.size(), 6U);
  finish({});
}

TEST_P(DeviceFaults, APublisherEndsWithItsCopiesUnderWay) {
  for (int round = 0; round < 4; ++round) {
    open(seed_ + static_cast<std::uint64_t>(round));
    DeviceModel model(trainer_, {100'000, 33});
    for (std::uint64_t number = 1; number <= 2; ++number) {
      model.write({}, number);
      ASSERT_TRUE(publisher_->publish(model.views({}), {}));
    }
    if (round % 2 == 0) {
      ASSERT_TRUE(publisher_->close(kPatience));
    }
    publisher_.reset();
  }
}

TEST_P(DeviceFaults, SlabsThatTheDriverRefusesAreCopiedIntoAllTheSame) {
  LogLines log;
  registers_ = false;
  open(seed_);
  std::vector<std::uint64_t> sizes(100, 1001);
  sizes[5] = 200'000;
  DeviceModel model(trainer_, sizes);
  for (std::uint64_t number = 1; number <= 2; ++number) {
    model.write({}, number);
    const Values values = model.values();
    const auto receipt = publisher_->publish(model.views({}), {});
    ASSERT_TRUE(receipt) << words_of(receipt);
    model.write({}, 100 + number);
    expect_served(number, values);
    finish({});
  }
  EXPECT_EQ(log.with("this is said once"), 1U);
}

TEST_P(DeviceFaults, ACopierWhoseCopiesRunOnEndsAllTheSame) {
  LogLines log;
  // It must outlive what stays with the driver.
  const auto host = std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed_});
  const auto device = must(host->open(gpu::host_device_uuid(0)));
  const gpu::Memory memory = must(device->allocate(4096));
  constexpr std::size_t kSlabBytes = 1 << 16;
  void* const slab = ::mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(slab, MAP_FAILED);
  const TensorView view{.spec = {.name = "w", .dtype = DType::u8, .shape = {1000}},
                        .data = {memory.address(), 1000},
                        .place = {.memory = MemoryKind::device}};
  std::vector<TensorCopy> copies;
  for (std::size_t i = 0; i < 40; ++i) {
    copies.push_back({.to = {static_cast<std::byte*>(slab) + i * 1000, 1000}, .from = view.data, .tensor = &view});
  }
  std::string outcome;
  std::weak_ptr<int> owner;
  {
    DeviceCopier copier(host);
    const auto given = std::make_shared<int>();
    owner = given;
    copier.add_slab({static_cast<std::byte*>(slab), kSlabBytes}, given);
    ASSERT_TRUE(copier.issue(copies, [](auto) {}));
  }
  EXPECT_TRUE(owner.expired()) << "copies that have ended keep nothing";
  host->hold(true);
  {
    DeviceCopier copier(host, std::chrono::milliseconds(1));
    const auto given = std::make_shared<int>();
    owner = given;
    copier.add_slab({static_cast<std::byte*>(slab), kSlabBytes}, given);
    ASSERT_TRUE(copier.issue(copies, [&](auto copied) { outcome = code_of(copied); }));
  }
  EXPECT_EQ(outcome, "timed_out");
  EXPECT_FALSE(owner.expired()) << "its memory is not given to others while they run on";
  EXPECT_EQ(log.with("still run after 1 ms"), 1U);
  EXPECT_EQ(log.with("stays until the process ends"), 0U) << "neither a stream nor a registration waited once more";
  host->hold(false);
}

/// A later arena's slab would land at its address, and the driver would copy to the pages of the earlier one.
TEST_P(DeviceFaults, AnArenaStaysMappedWhileCopiesRunOn) {
  DeviceModel model(trainer_, {5000, 77});
  const auto views = model.views({});
  std::vector<TensorSpec> specs;
  for (const TensorView& view : views) specs.push_back(view.spec);
  const auto outlives_its_capture = [&](bool is_held) {
    std::vector<Bytes> slabs;
    auto capture = must(Capture::open(
        {.name = "test", .lock_memory = false},
        {.on_sealed = [](const SealedCapture&) { return true; }, .on_slab = [&](Bytes slab) { slabs.push_back(slab); }},
        /*copier=*/nullptr, std::make_unique<DeviceCopier>(platform_, is_held ? Duration(1) : kPatience)));
    must(capture->prepare(*must(Architecture::guess_chain(specs))));
    hold(is_held);
    must(capture->capture({.ticket = 1, .tensors = views}));
    capture = nullptr;
    hold(false);
    finish({});
    // Asks nothing of pages that are mapped.
    return ::madvise(const_cast<std::byte*>(slabs.front().data()), slabs.front().size(), MADV_NORMAL) == 0;
  };
  EXPECT_FALSE(outlives_its_capture(false));
  EXPECT_TRUE(outlives_its_capture(true));
}

/// What comes from host memory waits for the versions before, and they for the GPU.
TEST_P(DeviceFaults, NothingWaitsForEverForAGpuThatHangs) {
  DeviceModel model(trainer_, {5000, 77});
  const auto views = model.views({});
  std::vector<TensorSpec> specs;
  for (const TensorView& view : views) specs.push_back(view.spec);
  const auto architecture = must(Architecture::guess_chain(specs));
  std::vector<SealedCapture> sealed;
  const auto capture =
      must(Capture::open({.name = "test", .lock_memory = false, .wait_at_most = std::chrono::milliseconds(1)},
                         {.on_sealed =
                              [&](SealedCapture one) {
                                sealed.push_back(std::move(one));
                                return true;
                              }},
                         /*copier=*/nullptr, std::make_unique<DeviceCopier>(platform_)));
  must(capture->prepare(*architecture));
  model.write({}, 1);
  const Values values = {seeded_bytes(5000, 5), seeded_bytes(77, 6)};
  auto of_host = views;
  for (std::size_t i = 0; i < of_host.size(); ++i) {
    of_host[i].data = values[i];
    of_host[i].place = {};
  }
  hold(true);
  must(capture->begin(views));
  must(capture->add(views, std::vector<std::uint32_t>{0}));
  const auto again = capture->add(of_host, std::vector<std::uint32_t>{0, 1});
  EXPECT_EQ(code_of(again), "out_of_space");
  EXPECT_THAT(words_of(again), HasSubstr("an earlier copy of a tensor did not end in time"));
  EXPECT_FALSE(capture->is_open());
  must(capture->capture({.ticket = 1, .tensors = views}));
  const auto refused = capture->capture({.ticket = 2, .tensors = of_host});
  EXPECT_EQ(code_of(refused), "out_of_space");
  EXPECT_THAT(words_of(refused), HasSubstr("not sealed in time, as when a GPU hangs"));
  EXPECT_EQ(code_of(capture->prepare(*architecture)), "timed_out");
  hold(false);
  must(capture->wait_idle(kPatience));
  must(capture->capture({.ticket = 3, .tensors = of_host, .kind = Capture::Kind::only}));
  must(capture->wait_idle(kPatience));
  ASSERT_EQ(sealed.size(), 2U);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(sealed.back().digests[i], digest_of(values[i])) << i;
  finish({});
}

TEST_P(DeviceFaults, ASlabThatAnotherPartOfTheProgramRegisteredIsRefused) {
  DeviceModel model(trainer_, {5000});
  const auto views = model.views({});
  model.write({}, 1);
  const gpu::Pages slab(8192);
  DeviceCopier copier(platform_);
  copier.add_slab(slab.all(), nullptr);
  const std::vector<TensorCopy> copies = {
      {.to = slab.all().first(5000), .from = views[0].data, .tensor = views.data()}};
  gpu::Registration theirs = must(trainer_->register_host(slab.begin() + 4096, 4096, gpu::HostAccess::read_write));
  const Status refused = copier.issue(copies, [](auto) {});
  EXPECT_EQ(code_of(refused), "failed_precondition");
  EXPECT_THAT(words_of(refused), HasSubstr("might go to pages that are not the publisher's"));
  must(theirs.end(kPatience));
  must(copier.issue(copies, [](auto) {}));
  copier.end();
  finish({});
}

TEST_P(DeviceFaults, ACopyThatADeviceDoesNotEndFailsWithTheCopier) {
  DeviceModel model(trainer_, {5000});
  const auto views = model.views({});
  model.write({}, 1);
  std::vector<std::byte> to(5000);
  std::vector<std::string> outcomes;
  hold(true);
  {
    DeviceCopier copier(platform_, std::chrono::milliseconds(1));
    ASSERT_TRUE(copier.issue({{.to = to, .from = views[0].data, .tensor = &views[0]}}, [&](auto copied) {
      outcomes.push_back(code_of(copied));
      hold(false);  // The ends of streams wait longer.
    }));
    copier.end();
    std::string of_late;
    EXPECT_EQ(code_of(copier.issue({}, [&](auto copied) { of_late = code_of(copied); })), "failed_precondition");
    EXPECT_EQ(of_late, "failed_precondition");
  }
  EXPECT_THAT(outcomes, testing::ElementsAre("timed_out"));
  finish({});
}

TEST_P(DeviceFaults, WhoReadsWithTheProcessorRefusesThem) {
  const DeviceModel model(trainer_, {50});
  const auto status = check_readable_by_host(model.views({}).front());
  EXPECT_EQ(code_of(status), "unsupported");
  EXPECT_THAT(words_of(status), HasSubstr("tensor layer0.w"));
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceFaults, testing::Values(gpu::EngineCase{.name = "host", .is_host = true}));

}  // namespace
}  // namespace freshet::test
