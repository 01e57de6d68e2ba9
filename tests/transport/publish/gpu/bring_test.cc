// SPDX-License-Identifier: Apache-2.0
// What crosses the bus of a version in a GPU's memory: nothing of equal tensors, and of the others what changed.

#include <atomic>
#include <future>
#include <iostream>
#include <random>

#include "core/base/mutex.h"
#include "tests/transport/publish/gpu/device_lab.h"
#include "transport/publish/bring_costs.h"
#include "transport/publish/capture.h"
#include "transport/publish/device_copier.h"
#include "transport/publish/segment_pairs.h"

namespace freshet::test {
namespace {

using gpu::must;

/// A copier of a GPU whose bus fails when the test says so.
class BrokenBus final : public TensorCopier {
 public:
  BrokenBus(std::shared_ptr<gpu::Platform> platform, BringCosts::Deltas deltas)
      : copier_(std::move(platform), kPatience, deltas) {}
  MemoryKind memory_kind() const override { return copier_.memory_kind(); }
  void add_slab(Bytes memory, std::shared_ptr<const void> owner) override {
    copier_.add_slab(memory, std::move(owner));
  }
  Result<std::shared_ptr<gpu::Device>> device_of(std::int32_t ordinal) override { return copier_.device_of(ordinal); }
  void end() override { copier_.end(); }
  Status issue(std::vector<TensorCopy> copies, Done done) override {
    return copier_.issue(std::move(copies), std::move(done));
  }
  Status bring(std::span<const TensorCopy> copies) override {
    if (is_broken) return fail(Code::io_error, "the device fell off the bus");
    for (const TensorCopy& copy : copies) {
      bytes += copy.from.size();
      deltas_offered += copy.delta != nullptr ? 1 : 0;
    }
    return copier_.bring(copies);
  }

  std::atomic<bool> is_broken = false;
  std::atomic<std::uint64_t> bytes = 0;  ///< Of the tensors.
  std::atomic<std::uint64_t> deltas_offered = 0;

 private:
  DeviceCopier copier_;
};

/// A loop on a host device that captures versions, and a receiver that compares each with the values of its step.
class BringRun {
 public:
  BringRun(std::uint64_t seed, const std::vector<std::uint64_t>& sizes, int compute_major = 8,
           BringCosts::Deltas deltas = BringCosts::Deltas::measured)
      : platform_(std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed, .compute_major = compute_major})),
        device_(must(platform_->open(gpu::host_device_uuid(0)))),
        model_(device_, sizes),
        stream_(must(device_->create_stream())) {
    auto bus = std::make_unique<BrokenBus>(platform_, deltas);
    bus_ = bus.get();
    std::vector<TensorSpec> specs;
    for (const TensorView& view : model_.views(stream_.handle())) specs.push_back(view.spec);
    const auto on_failed = [this](std::uint64_t ticket, const Error&) {
      MutexLock lock(mutex_);
      failed_.push_back(ticket);
    };
    capture_ = must(Capture::open(
        {.name = "test", .arena_copies = 8, .lock_memory = false, .device_memory = {.copies = 8}},
        {.on_sealed = [this](const SealedCapture& sealed) { return on_sealed(sealed); }, .on_failed = on_failed},
        /*copier=*/nullptr, std::move(bus)));
    must(capture_->prepare(*must(Architecture::guess_chain(specs))));
  }
  ~BringRun() { capture_.reset(); }

  DeviceModel& model() { return model_; }
  gpu::StreamHandle stream() const { return stream_.handle(); }
  BrokenBus& bus() { return *bus_; }

  void take(Capture::Kind kind, const std::vector<std::uint32_t>& indices = {}) {
    {
      MutexLock lock(mutex_);
      values_.push_back(model_.values());
    }
    const auto views = model_.views(stream());
    must(capture_->capture({.ticket = ++tickets_, .tensors = views, .kind = kind, .indices = indices}));
    must(capture_->wait_idle(kPatience));
  }
  std::uint64_t tickets() const { return tickets_; }
  /// Of device memory that copies brought to the host, digests and all.
  std::uint64_t bytes_over_the_bus() const { return platform_->bytes_to_host(); }
  std::vector<std::uint64_t> failed() {
    MutexLock lock(mutex_);
    return failed_;
  }
  /// Nothing is in flight: what is not free is the newest version's.
  void expect_only_the_newest_is_held() {
    MutexLock lock(mutex_);
    capture_->free(newest_.segments);
    const SlabArena::Stat host = capture_->stat();
    EXPECT_EQ(host.arena_free_bytes, host.arena_bytes);
    const SlabArena::Stat on_device = capture_->device_arena().slabs().stat();
    EXPECT_EQ(on_device.arena_free_bytes, on_device.arena_bytes);
    newest_ = {};
  }

 private:
  /// On the worker.
  bool on_sealed(const SealedCapture& sealed) {
    MutexLock lock(mutex_);
    const Values& values = values_.at(sealed.ticket - 1);
    for (std::uint32_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(same_bytes(capture_->bytes(sealed.places[i]), values[i]))
          << "ticket " << sealed.ticket << ", tensor " << i;
      EXPECT_EQ(sealed.digests[i], digest_of(values[i]));
    }
    std::vector<SegmentIndex> unnamed;
    for (const SegmentIndex segment : newest_.segments) {
      if (std::ranges::find(sealed.segments, segment) == sealed.segments.end()) unnamed.push_back(segment);
    }
    capture_->free(unnamed);
    newest_ = sealed;
    return true;
  }

  const std::shared_ptr<gpu::HostPlatform> platform_;
  const std::shared_ptr<gpu::Device> device_;
  DeviceModel model_;
  const gpu::Stream stream_;
  BrokenBus* bus_ = nullptr;
  std::uint64_t tickets_ = 0;

  Mutex mutex_;
  std::vector<Values> values_ FRESHET_GUARDED_BY(mutex_);  ///< By ticket.
  std::vector<std::uint64_t> failed_ FRESHET_GUARDED_BY(mutex_);
  SealedCapture newest_ FRESHET_GUARDED_BY(mutex_);

  std::unique_ptr<Capture> capture_;  ///< Last: its worker uses the rest.
};

using BringTickets = std::vector<std::uint64_t>;
constexpr auto kBringCompared = Capture::Kind::find;
constexpr auto kBringNamed = Capture::Kind::only;

const std::uint64_t kBringSeed = from_environment("FRESHET_GPU_SEED", 1);

TEST(DeviceBring, EqualTensorsStayOnTheDevice) {
  BringRun run(kBringSeed, {5000, 0, 240, 241, 3000});
  run.model().write(run.stream(), 1);
  run.take(kBringCompared);
  EXPECT_EQ(run.bus().bytes, 5000U + 240 + 241 + 3000);
  run.take(kBringCompared);
  EXPECT_EQ(run.bus().bytes, 5000U + 240 + 241 + 3000);
  run.model().write(run.stream(), 2, 7);
  run.model().write(run.stream(), 4, 8);
  run.take(kBringCompared);
  EXPECT_EQ(run.bus().bytes, 5000U + 2 * 240 + 241 + 2 * 3000);
  EXPECT_EQ(run.failed(), BringTickets{});
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, WhatTheLoopSaysChangedIsBroughtThoughItIsEqual) {
  BringRun run(kBringSeed, {5000, 300});
  run.model().write(run.stream(), 1);
  run.take(kBringNamed, {0});
  EXPECT_EQ(run.bus().bytes, 5300U);
  run.take(kBringNamed, {1});
  EXPECT_EQ(run.bus().bytes, 5600U);
  run.take(Capture::Kind::all);
  EXPECT_EQ(run.bus().bytes, 10'900U);
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, AVersionWhoseBytesDoNotComeIsNone) {
  BringRun run(kBringSeed, {5000, 300});
  run.bus().is_broken = true;
  run.model().write(run.stream(), 1);
  run.take(kBringCompared);
  EXPECT_EQ(run.failed(), BringTickets{1});
  run.bus().is_broken = false;
  run.take(kBringNamed, {});
  EXPECT_EQ(run.failed(), BringTickets{1}) << "the second took what the first lost";
  run.bus().is_broken = true;
  run.model().write(run.stream(), 1, 2);
  run.take(kBringCompared);
  run.bus().is_broken = false;
  // The digests are those of the version that came to nothing: they are nobody's.
  run.take(kBringCompared);
  EXPECT_EQ(run.failed(), (BringTickets{1, 3}));
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, WithoutKernelsTheHostDigestsWhatItBrought) {
  BringRun run(kBringSeed, {5000, 0, 300}, /*compute_major=*/7);
  run.model().write(run.stream(), 1);
  run.take(kBringCompared);
  run.model().write(run.stream(), 0, 2);
  run.take(kBringCompared);
  EXPECT_EQ(run.bus().bytes, 2 * 5300U) << "nobody knew before that one was equal";
  run.bus().is_broken = true;
  run.take(kBringCompared);
  run.bus().is_broken = false;
  run.take(kBringCompared);
  EXPECT_EQ(run.failed(), BringTickets{3});
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, OfAChangedTensorOnlyWhatChangedCrossesTheBus) {
  constexpr std::uint64_t kBytes = 100'000;
  BringRun run(kBringSeed, {kBytes, kBytes}, 8, BringCosts::Deltas::always);
  run.model().write(run.stream(), 1);
  run.take(kBringCompared);
  for (std::uint64_t version = 2; version <= 6; ++version) {
    for (std::uint64_t i = 0; i < 300; ++i) run.model().change(run.stream(), 0, (version * 7919 + i * 997) % kBytes);
    const std::uint64_t before = run.bytes_over_the_bus();
    run.take(kBringCompared);
    // Both segments of each of the first versions are fresh; later ones have those of a version that is gone.
    if (version <= 3) continue;
    EXPECT_LT(run.bytes_over_the_bus() - before, 5000U) << "version " << version;
  }
  EXPECT_GE(run.bus().deltas_offered, 3U);
  EXPECT_EQ(run.failed(), BringTickets{});
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, WhereBytesCostLessTheyCross) {
  constexpr std::uint64_t kBytes = 30'000;
  BringRun run(kBringSeed, {kBytes}, 8, BringCosts::Deltas::never);
  run.model().write(run.stream(), 1);
  run.take(kBringCompared);
  for (std::uint64_t version = 2; version <= 5; ++version) {
    run.model().change(run.stream(), 0, version);
    const std::uint64_t before = run.bytes_over_the_bus();
    run.take(kBringCompared);
    EXPECT_GE(run.bytes_over_the_bus() - before, kBytes);
  }
  EXPECT_GE(run.bus().deltas_offered, 1U) << "there was a choice";
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, ATensorThatChangesALotIsBroughtWhole) {
  BringRun run(kBringSeed, {30'000}, 8, BringCosts::Deltas::always);
  for (std::uint64_t version = 1; version <= 6; ++version) {
    run.model().write(run.stream(), version);
    run.take(kBringCompared);
  }
  EXPECT_EQ(run.bus().deltas_offered, 0U);
  EXPECT_EQ(run.failed(), BringTickets{});
  run.expect_only_the_newest_is_held();
}

TEST(DeviceBring, TheCheaperWayIsMeasured) {
  BringCosts costs;
  const auto ms = [](std::int64_t count) { return Duration(std::chrono::milliseconds(count)); };
  constexpr std::uint64_t kTensor = 64 << 20;
  for (int i = 0; i < 20; ++i) {
    costs.note_whole(kTensor, ms(60));
    costs.note_delta(kTensor / 64, ms(1));
  }
  EXPECT_TRUE(costs.is_delta_cheaper(kTensor, kTensor / 16));
  for (int i = 0; i < 20; ++i) costs.note_delta(kTensor / 64, ms(8));
  EXPECT_FALSE(costs.is_delta_cheaper(kTensor, kTensor / 4));
  EXPECT_TRUE(costs.is_delta_cheaper(kTensor, kTensor / 1024));
  costs.note_delta(0, ms(1000));
  int versions = 0;
  while (!costs.is_delta_cheaper(kTensor, kTensor / 4) && versions < 10'000) {
    costs.note_whole(kTensor, ms(60));
    ++versions;
  }
  EXPECT_GT(versions, 10);
  EXPECT_LT(versions, 1000) << "what was slow once is never tried again";
}

/// The small tensors that change whole beside the large ones: their time is that of the calls, not of the bytes.
TEST(DeviceBring, FewBytesTellNoCosts) {
  BringCosts costs;
  const auto us = [](std::int64_t count) { return Duration(std::chrono::microseconds(count)); };
  constexpr std::uint64_t kTensor = 64 << 20;
  for (int version = 0; version < 1000; ++version) {
    costs.note_whole(65 * 8192, us(100));
    if (costs.is_delta_cheaper(kTensor, kTensor / 8)) {
      costs.note_delta(kTensor / 8, us(8'400));
    } else {
      costs.note_whole(kTensor, us(2'700));
    }
  }
  EXPECT_FALSE(costs.is_delta_cheaper(kTensor, kTensor / 8)) << "8.4 ms by delta, 2.7 ms whole";
  for (int i = 0; i < 1000; ++i) costs.note_delta(4096, us(50));
  EXPECT_TRUE(costs.is_delta_cheaper(kTensor, kTensor / 128));
}

TEST(DeviceBring, SegmentsAreAPairUntilOneIsWritten) {
  SegmentPairs pairs;
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  pairs.note(1, kOnDevice | 1);
  EXPECT_TRUE(pairs.take(1, kOnDevice | 1));
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  pairs.note(1, kOnDevice | 1);
  EXPECT_FALSE(pairs.take(1, std::nullopt)) << "host memory alone";
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  pairs.note(1, kOnDevice | 1);
  EXPECT_FALSE(pairs.take(2, kOnDevice | 1)) << "with another segment of host memory";
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  pairs.note(1, kOnDevice | 1);
  pairs.note(2, kOnDevice | 1);
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  pairs.note(1, kOnDevice | 1);
  pairs.note(1, kOnDevice | 2);
  EXPECT_FALSE(pairs.take(1, kOnDevice | 1));
  EXPECT_FALSE(pairs.take(1, kOnDevice | 2));
}

TEST(DeviceBring, APairIsUpdatedSoManyTimesInARow) {
  SegmentPairs pairs;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < SegmentPairs::kUpdatesMax; ++i) {
      pairs.note(1, kOnDevice | 1);
      pairs.note(2, kOnDevice | 2);
      ASSERT_TRUE(pairs.take(1, kOnDevice | 1)) << "round " << round << ", update " << i;
      ASSERT_TRUE(pairs.take(2, kOnDevice | 2)) << "round " << round << ", update " << i;
      if (i == 0) {
        EXPECT_FALSE(pairs.take(2, kOnDevice | 2)) << "it was not noted, and is counted anew";
      }
    }
    pairs.note(1, kOnDevice | 1);
    EXPECT_FALSE(pairs.take(1, kOnDevice | 1)) << "all bytes are brought once";
  }
}

/// A segment of host memory that lost a bit which no delta touches.
TEST(DeviceBring, WhatNoDeltaTouchesIsMendedByAllBytes) {
  constexpr std::uint64_t kBytes = 5'000;
  const auto platform = std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = kBringSeed});
  const auto device = must(platform->open(gpu::host_device_uuid(0)));
  DeviceModel model(device, {kBytes});
  const gpu::Stream stream = must(device->create_stream());
  const gpu::Memory segment = must(device->allocate(kBytes));
  gpu::Pages host(2 * 4096);
  DeviceCopier copier(platform, kPatience, BringCosts::Deltas::always);
  copier.add_slab(host.all(), nullptr);
  const MutableBytes to = host.all().first(kBytes);
  constexpr std::uint32_t kDeltas = 3;
  SegmentPairs pairs;
  model.write(stream.handle(), 1);
  std::uint32_t deltas = 0;
  for (std::uint32_t version = 1; version <= kDeltas + 2; ++version) {
    if (version > 1) model.change(stream.handle(), 0, 1'234);
    const auto views = model.views(stream.handle());
    std::promise<TensorCopier::Copied> promise;
    must(copier.issue({{.to = to,
                        .from = views[0].data,
                        .tensor = views.data(),
                        .via = {segment.address(), to.size()},
                        .is_paired = pairs.take(1, kOnDevice | 1)}},
                      [&promise](auto copied) { promise.set_value(std::move(copied)); }));
    const FormedWithCopies formed = must(promise.get_future().get());
    ASSERT_EQ(formed.deltas.size(), 1U);
    deltas += formed.deltas[0] != nullptr ? 1 : 0;
    must(copier.bring(
        std::vector<TensorCopy>{{.to = to, .from = {segment.address(), to.size()}, .delta = formed.deltas[0]}}));
    pairs.note(1, kOnDevice | 1);
    if (version > 1) continue;
    to[4'321] ^= std::byte{1};
    for (std::uint32_t i = kDeltas; i < SegmentPairs::kUpdatesMax; ++i) {
      pairs.take(1, kOnDevice | 1);
      pairs.note(1, kOnDevice | 1);
    }
  }
  EXPECT_EQ(deltas, kDeltas);
  EXPECT_TRUE(same_bytes(to, model.values()[0]));
}

/// A segment of host memory that lost a bit while nobody looked: the sum of the delta finds it where the delta touches
/// it, and all bytes come.
TEST(DeviceBring, AHostSegmentWithAWrongByteIsBroughtWhole) {
  const auto platform = std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = kBringSeed});
  const auto device = must(platform->open(gpu::host_device_uuid(0)));
  DeviceModel model(device, {20'000});
  const gpu::Stream stream = must(device->create_stream());
  const gpu::Memory segment = must(device->allocate(20'000));
  gpu::Pages host(5 * 4096);
  DeviceCopier copier(platform, kPatience, BringCosts::Deltas::always);
  copier.add_slab(host.all(), nullptr);
  const MutableBytes to = host.all().first(20'000);
  for (int version = 1; version <= 2; ++version) {
    if (version == 1) model.write(stream.handle(), 1);
    if (version == 2) {
      model.change(stream.handle(), 0, 12'345);
      to[12'345] ^= std::byte{1};
    }
    const auto views = model.views(stream.handle());
    std::promise<TensorCopier::Copied> promise;
    must(copier.issue({{.to = to,
                        .from = views[0].data,
                        .tensor = views.data(),
                        .via = {segment.address(), to.size()},
                        .is_paired = version == 2}},
                      [&promise](auto copied) { promise.set_value(std::move(copied)); }));
    const FormedWithCopies formed = must(promise.get_future().get());
    ASSERT_EQ(formed.deltas.size(), 1U);
    ASSERT_EQ(formed.deltas[0] != nullptr, version == 2);
    must(copier.bring(
        std::vector<TensorCopy>{{.to = to, .from = {segment.address(), to.size()}, .delta = formed.deltas[0]}}));
    EXPECT_TRUE(same_bytes(to, model.values()[0])) << "version " << version;
  }
}

TEST(DeviceBring, RandomStepsOverABusThatFailsLoseNothing) {
#if defined(__SANITIZE_THREAD__)
  constexpr bool is_slow = true;  // It makes a thread of each fiber of each launch.
#else
  constexpr bool is_slow = false;
#endif
  for (const std::uint64_t seed : {kBringSeed, std::uint64_t{std::random_device()()}}) {
    if (is_slow && seed != kBringSeed) continue;
    SCOPED_TRACE(testing::Message() << "FRESHET_GPU_SEED=" << seed);
    std::mt19937_64 random(seed);
    BringRun run(seed, {10, 64, 4096, 5000, 0, 2000, 300}, random() % 4 == 0 ? 7 : 8, BringCosts::Deltas::always);
    run.model().write(run.stream(), seed);
    for (int step = 0; step < (is_slow ? 12 : 60) && !testing::Test::HasFailure(); ++step) {
      std::vector<std::uint32_t> touched;
      for (std::uint32_t i = 0; i < run.model().size(); ++i) {
        if (random() % 3 != 0) continue;
        if (i > 1 && random() % 2 == 0 && run.model().values()[i].size() > 0) {
          run.model().change(run.stream(), i, random() % run.model().values()[i].size());
        } else {
          run.model().write(run.stream(), i, random() % 3);  // Often as before.
        }
        touched.push_back(i);
      }
      run.bus().is_broken = random() % 4 == 0;
      run.take(static_cast<Capture::Kind>(random() % 3), touched);
    }
    EXPECT_TRUE(is_slow || !run.failed().empty());
    EXPECT_LT(run.failed().size(), run.tickets());
    run.expect_only_the_newest_is_held();
  }
}

}  // namespace
}  // namespace freshet::test
