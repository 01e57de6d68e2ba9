// SPDX-License-Identifier: Apache-2.0
/// What a server's tensors on a device hold, and when.

#include "tests/transport/subscribe/device/serving_lab.h"

namespace freshet::gpu {
namespace {

std::vector<EngineCase> serving_driver_cases() {
  if (!open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, GpuServing, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuServing, testing::ValuesIn(serving_driver_cases()));

TEST_P(GpuServing, ARefreshBringsAVersion) {
  Trained model(mixed_sizes());
  publish(model);
  in_many_orders(
      [&] {
        const ServerMemory server = server_of(model);
        const auto tensors = bind(server);
        EXPECT_EQ(tensors->version(), 0U);
        const Stream stream = must(device_->create_stream());
        const DeviceRefresh refreshed = refresh(tensors, stream);
        EXPECT_EQ(refreshed.version, 1U);
        EXPECT_EQ(refreshed.tensors, model.size());
        EXPECT_EQ(tensors->version(), 1U);
        finish(stream.handle());
        expect_holds(server, model);
        EXPECT_EQ(tensors->pins(), 0U);
      },
      orders(24));
}

/// At the bounds of a launch's tensors, of its tiles, and of words.
TEST_P(GpuServing, TensorsOfTheBoundsOfALaunchAreWhole) {
  std::vector<std::uint64_t> sizes = {65'535, 65'536, 65'537, 2'047, 2'048, 2'049};
  for (std::uint64_t size = 0; sizes.size() < 40; ++size) sizes.push_back(size);
  Trained model(sizes);
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(GpuServing, OnlyWhatAnotherVersionWroteIsCopied) {
  Trained model(mixed_sizes());
  const auto [server, tensors, stream] = bound_to(model);
  EXPECT_EQ(refresh(tensors, stream).tensors, model.size());
  EXPECT_EQ(refresh(tensors, stream).tensors, 0U);
  const auto before = tensors->holds(5);
  model.train(0, 2);
  model.train(7, 2);
  publish(model);
  const DeviceRefresh refreshed = refresh(tensors, stream);
  EXPECT_EQ(refreshed.tensors, 2U);
  EXPECT_EQ(refreshed.bytes, model.value(0).size() + model.value(7).size());
  EXPECT_EQ(tensors->version(), 2U);
  EXPECT_EQ(tensors->holds(5), before);
  EXPECT_NE(tensors->holds(7), before);
  finish(stream.handle());
  expect_holds(server, model);
}

TEST_P(GpuServing, ATensorThatIsForgottenIsCopiedAgain) {
  Trained model({100, 70'000, 300});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  finish(stream.handle());
  write(server.address(1), test::seeded_bytes(70'000, 99));
  EXPECT_EQ(refresh(tensors, stream).tensors, 0U);
  must(tensors->forget("t1"));
  EXPECT_EQ(refresh(tensors, stream).tensors, 1U);
  finish(stream.handle());
  expect_holds(server, model);
  EXPECT_EQ(code_of(tensors->forget("t9")), "not_found");
  tensors->forget();
  EXPECT_EQ(refresh(tensors, stream).tensors, 3U);
}

TEST_P(GpuServing, AVersionStaysPinnedUntilItsCopiesAreDone) {
  Trained model({300'000, 1'000, 2'000});
  Trained newer = model;
  in_many_orders(
      [&] {
        const VersionNumber first = publish(model, {.changed = Changed::all()});
        const ServerMemory server = server_of(model);
        const auto tensors = bind(server);
        const Stream stream = must(device_->create_stream());
        auto snapshot = std::make_shared<const Snapshot>(subscriber_->snapshot());
        ASSERT_EQ(snapshot->version(), first);
        const std::weak_ptr<const Snapshot> pinned = snapshot;
        must(tensors->refresh(std::move(snapshot), stream.handle()));
        // Versions that would be written where the first lies, if nobody read it.
        for (int more = 0; more < 6; ++more) {
          newer.train(first + 100 + static_cast<std::uint64_t>(more));
          publish(newer, {.changed = Changed::all()});
        }
        EXPECT_TRUE(!GetParam().is_host || !pinned.expired());
        finish(stream.handle());
        expect_holds(server, model);
        EXPECT_EQ(tensors->pins(), 0U);
        EXPECT_TRUE(pinned.expired());
      },
      orders(8));
}

TEST_P(GpuServing, AForwardOfAnyStreamHasOneVersion) {
  Trained first(mixed_sizes());
  Trained second = first;
  second.train(2);
  in_many_orders(
      [&] {
        publish(first, {.changed = Changed::all()});
        const ServerMemory server = server_of(first);
        const auto tensors = bind(server);
        const auto theirs = framework();
        const Stream refreshing = must(theirs->create_stream());
        const Stream serving = must(theirs->create_stream());
        const Memory out = must(theirs->allocate(3 * server.bytes()));
        const auto forward = [&](StreamHandle stream, std::uint64_t answer) {
          must(tensors->use(stream));
          must(theirs->copy(stream, out.address() + answer * server.bytes(), server.address(), server.bytes()));
        };
        must(tensors->refresh(subscriber_->snapshot(), refreshing.handle()));
        forward(serving.handle(), 0);
        publish(second, {.changed = Changed::all()});
        must(tensors->refresh(subscriber_->snapshot(), refreshing.handle()));
        forward(serving.handle(), 1);
        forward(refreshing.handle(), 2);
        finish(serving.handle());
        finish(refreshing.handle());
        EXPECT_TRUE(test::same_bytes(read(out.address(), server.bytes()), server.with(first)));
        EXPECT_TRUE(test::same_bytes(read(out.address() + server.bytes(), server.bytes()), server.with(second)));
        EXPECT_TRUE(test::same_bytes(read(out.address() + 2 * server.bytes(), server.bytes()), server.with(second)));
      },
      orders(10));
}

TEST_P(GpuServing, RefreshesOfTwoStreamsAreOrdered) {
  Trained first(mixed_sizes());
  Trained second = first;
  second.train(2);
  in_many_orders(
      [&] {
        const ServerMemory server = server_of(first);
        const auto tensors = bind(server);
        const Stream one = must(device_->create_stream());
        const Stream two = must(device_->create_stream());
        publish(first, {.changed = Changed::all()});
        must(tensors->refresh(subscriber_->snapshot(), one.handle()));
        publish(second, {.changed = Changed::all()});
        must(tensors->refresh(subscriber_->snapshot(), two.handle()));
        must(tensors->wait(kPatience));
        EXPECT_EQ(tensors->pins(), 0U);
        expect_holds(server, second);
      },
      orders(10));
}

TEST_P(GpuServing, AnOlderVersionIsCopiedToo) {
  PublisherOptions options = publisher_options();
  options.keep_versions = 3;
  publisher_ = nullptr;
  serve(test::open_publisher(options), test::open_subscriber(subscriber_options()));
  Trained model(mixed_sizes());
  publish(model);
  const Trained older = model;
  model.train(2, 9);
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  const DeviceRefresh back =
      must(tensors->refresh(must(subscriber_->snapshot_of(1, test::kPatience)), stream.handle()));
  EXPECT_EQ(back.version, 1U);
  EXPECT_EQ(back.tensors, 1U);
  must(tensors->wait(kPatience));
  expect_holds(server, older);
}

TEST_P(GpuServing, WhatDiffersIsNamedAndNothingIsCopied) {
  Trained model({100, 200, 300});
  publish(model);
  const ServerMemory server = server_of(model);
  const Stream stream = must(device_->create_stream());
  const auto refuses = [&](std::size_t tensor, const TensorSpec& spec, const std::string& words) {
    std::vector<DeviceTensor> bound = server.tensors();
    bound[tensor].spec = spec;
    const auto tensors = must(DeviceTensors::bind(device_, bound));
    for (const Status& status : {tensors->prepare(subscriber_->snapshot()),
                                 Status(tensors->refresh(subscriber_->snapshot(), stream.handle()).map([](auto) {}))}) {
      EXPECT_EQ(code_of(status), "failed_precondition");
      EXPECT_THAT(words_of(status), testing::HasSubstr(words));
    }
    EXPECT_EQ(tensors->version(), 0U);
    EXPECT_FALSE(tensors->is_mixed());
    EXPECT_EQ(tensors->pins(), 0U);
  };
  refuses(2, {.name = "t2", .dtype = DType::u8, .shape = {299}},
          "tensor t2: demo@1 has u8[300], the server has u8[299]");
  refuses(1, {.name = "t1", .dtype = DType::i8, .shape = {200}},
          "tensor t1: demo@1 has u8[200], the server has i8[200]");
  refuses(1, {.name = "t1", .dtype = DType::u8, .shape = {10, 20}}, "the server has u8[10, 20]");
  refuses(0, {.name = "other", .dtype = DType::u8, .shape = {100}}, "tensor other: demo@1 does not have it");
  finish(stream.handle());
  EXPECT_TRUE(test::same_bytes(read(server.address(), server.bytes()), server.blank()));
  const auto tensors = bind(server);
  EXPECT_EQ(code_of(tensors->refresh(Snapshot(), stream.handle())), "invalid_argument");
  EXPECT_EQ(code_of(tensors->refresh(std::shared_ptr<const Snapshot>(), stream.handle())), "invalid_argument");
}

TEST_P(GpuServing, ATensorThatTheSubscriberDoesNotTakeIsNamed) {
  Trained model({100, 200});
  model.spec(1).role = Role::optimizer;
  const auto [server, tensors, stream] = bound_to(model);
  EXPECT_THAT(words_of(tensors->refresh(subscriber_->snapshot(), stream.handle())),
              testing::HasSubstr("tensor t1: this subscriber of demo@1 does not take it"));
}

TEST_P(GpuServing, MemoryThatIsNotTheDevicesIsRefused) {
  const Memory memory = must(device_->allocate(1 << 20));
  const auto refuses = [&](std::vector<DeviceTensor> tensors, const std::string& words) {
    const auto bound = DeviceTensors::bind(device_, std::move(tensors));
    EXPECT_EQ(code_of(bound), "invalid_argument");
    EXPECT_THAT(words_of(bound), testing::HasSubstr(words));
  };
  const auto tensor = [](const std::string& name, void* address, std::uint64_t bytes) {
    return DeviceTensor{.spec = {.name = name, .dtype = DType::u8, .shape = {bytes}}, .address = address};
  };
  std::vector<std::byte> local(100);
  refuses({tensor("a", local.data(), 100)}, "tensor a: its 100 bytes at");
  refuses({tensor("a", nullptr, 100)}, "are not memory of device");
  refuses({tensor("b", memory.address() + memory.bytes() - 10, 11)}, "tensor b: its 11 bytes at");
  refuses({tensor("a", memory.address(), 100), tensor("b", memory.address() + 99, 100)},
          "tensor b: tensor a lies in the same memory");
  refuses({tensor("a", memory.address(), 1), tensor("a", memory.address() + 99, 1)}, "two tensors have this name");
  refuses({tensor("\x01", memory.address(), 1)}, "name");
  EXPECT_EQ(code_of(DeviceTensors::bind(nullptr, {})), "invalid_argument");
  must(DeviceTensors::bind(device_, {tensor("a", nullptr, 0), tensor("b", memory.address(), memory.bytes())}));
  must(DeviceTensors::bind(device_, {}));
}

TEST_P(GpuServing, ManySmallTensorsAreOneLaunch) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < (test::under_sanitizer() ? 3'000 : 30'000); ++i) sizes.push_back(1 + i % 50);
  Trained model(sizes);
  const auto [server, tensors, stream] = bound_to(model);
  must(tensors->prepare(subscriber_->snapshot()));
  const std::uint64_t before = GetParam().is_host ? host().turns() : 0;
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  EXPECT_TRUE(!GetParam().is_host || host().turns() - before < 100);
  expect_holds(server, model);
}

TEST_P(GpuServing, AFetchedVersionIsCopiedToo) {
  PublisherOptions options = publisher_options();
  options.hub_options.channels = std::vector{ChannelKind::zmq};
  publisher_ = nullptr;
  SubscriberOptions fetches = subscriber_options();
  fetches.channel = ChannelKind::zmq;
  serve(test::open_publisher(options), test::open_subscriber(fetches));
  Trained model(mixed_sizes());
  const ServerMemory server = server_of(model);
  const auto tensors = bind(server);
  const Stream stream = must(device_->create_stream());
  for (std::uint64_t version = 1; version <= 4; ++version) {
    model.train(version);
    publish(model, {.changed = Changed::all()});
    refresh(tensors, stream);
  }
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

}  // namespace
}  // namespace freshet::gpu
