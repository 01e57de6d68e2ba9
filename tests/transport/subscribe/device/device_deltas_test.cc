// SPDX-License-Identifier: Apache-2.0
/// Tensors that came from another host by a delta: the device gets the delta, and applies it in place.

#include "tests/transport/subscribe/device/serving_lab.h"
#include "transport/subscribe/fetch/received_delta.h"

namespace freshet::gpu {
namespace {

class GpuServingDeltas : public GpuServing {
 protected:
  void SetUp() override {
    GpuServing::SetUp();
    if (lacks_kernels()) GTEST_SKIP() << why_no_fatbin();
    serve(nullptr, nullptr);
    PublisherOptions options = publisher_options();
    options.hub_options.channels = std::vector{ChannelKind::zmq};
    options.keep_versions = 2;  // A delta's base must still be there.
    SubscriberOptions fetches = subscriber_options();
    fetches.channel = ChannelKind::zmq;
    serve(test::open_publisher(options), test::open_subscriber(fetches));
    must(subscriber_->take_device_memory(device_));
  }

  std::uint64_t used() { return device_->info().bytes - must(device_->room()).free; }

  std::uint64_t bytes_to_device() {
    auto* const host = dynamic_cast<HostPlatform*>(platform_.get());
    return host == nullptr ? 0 : host->bytes_to_device();
  }
};

INSTANTIATE_TEST_SUITE_P(Host, GpuServingDeltas, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuServingDeltas, testing::ValuesIn([]() -> std::vector<EngineCase> {
                           if (!open_driver_platform()) return {};
                           return {{.name = "driver", .is_host = false}};
                         }()));

TEST_P(GpuServingDeltas, OnlyWhatChangedCrossesTheBus) {
  Trained model({300'001, 400, 0, 117'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  for (std::uint64_t version = 2; version <= 4; ++version) {
    model.touch(0, version, 1000);
    model.touch(3, version, 777);
    const std::uint64_t before = bytes_to_device();
    publish(model);
    const DeviceRefresh refreshed = refresh(tensors, stream);
    EXPECT_EQ(refreshed.tensors, 2U);
    EXPECT_EQ(refreshed.deltas, 2U);
    must(tensors->wait(kPatience));
    EXPECT_LT(bytes_to_device() - before, 10'000U);
    EXPECT_EQ(tensors->version(), version);
    expect_holds(server, model);
  }
}

/// Refreshes follow each other, and forwards of another stream, without the host's waiting.
TEST_P(GpuServingDeltas, RefreshesAndForwardsKeepTheirOrder) {
  Trained model({120'000});
  const ServerMemory server = server_of(model);
  const auto tensors = bind(server);
  const Stream copies = must(device_->create_stream());
  const Stream forward = must(device_->create_stream());
  const Memory seen = must(device_->allocate(5 * 120'000));
  std::vector<std::vector<std::byte>> expected;
  std::uint64_t deltas = 0;
  for (std::uint64_t version = 1; version <= 5; ++version) {
    if (version > 1) model.touch(0, version, 500);
    publish(model);
    deltas += must(tensors->refresh(subscriber_->snapshot(), copies.handle())).deltas;
    must(tensors->use(forward.handle()));
    must(device_->copy(forward.handle(), seen.address() + 120'000 * (version - 1), server.address(0), 120'000));
    expected.push_back(model.value(0));
  }
  EXPECT_GE(deltas, 1U) << "where the table was still in use, the tensor was copied";
  finish(forward.handle());
  must(tensors->wait(kPatience));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(test::same_bytes(read(seen.address() + 120'000 * i, 120'000), expected[i])) << "forward " << i;
  }
}

TEST_P(GpuServingDeltas, ATensorThatSomebodyElseWroteIsFoundAndMended) {
  Trained model({120'000, 130'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  const std::vector<std::byte> rubbish(600, std::byte{0xEE});
  write(server.address(1), rubbish);
  model.touch(0, 5, 500);
  model.touch(1, 5, 500);
  publish(model);
  EXPECT_EQ(refresh(tensors, stream).deltas, 2U);
  HeardLog log;
  const Status waited = tensors->wait(kPatience);
  EXPECT_EQ(code_of(waited), "corrupt");
  EXPECT_NE(words_of(waited).find("tensor t1 on device"), std::string::npos) << words_of(waited);
  EXPECT_EQ(log.count("somebody else wrote the tensor"), 1U);
  EXPECT_TRUE(tensors->is_mixed());
  EXPECT_EQ(tensors->version(), 0U);
  const DeviceRefresh mended = refresh(tensors, stream);
  EXPECT_EQ(mended.tensors, 1U);
  EXPECT_EQ(mended.deltas, 0U);
  must(tensors->wait(kPatience));
  EXPECT_FALSE(tensors->is_mixed());
  EXPECT_EQ(tensors->version(), 2U);
  expect_holds(server, model);
}

/// No delta touches the byte that somebody else wrote, so no sum tells of it.
TEST_P(GpuServingDeltas, WhatNoDeltaTouchesIsMendedByACopy) {
  constexpr std::uint32_t kInARow = 3;
  Trained model({120'000});
  publish(model);
  const ServerMemory server = server_of(model);
  const auto tensors = must(DeviceTensors::bind(device_, server.tensors(), {.in_a_row_max = kInARow}));
  const Stream stream = must(device_->create_stream());
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  write(server.address(0), std::vector<std::byte>(1, ~model.value(0)[0]));
  for (std::uint32_t i = 1; i <= 2 * kInARow + 2; ++i) {
    model.touch(0, 5, 500);
    publish(model);
    const bool is_copied = i % (kInARow + 1) == 0;
    EXPECT_EQ(refresh(tensors, stream).deltas, is_copied ? 0U : 1U) << i;
    must(tensors->wait(kPatience));
    const bool is_mended = read(server.address(0), 1)[0] == model.value(0)[0];
    EXPECT_EQ(is_mended, i > kInARow) << i;
  }
  expect_holds(server, model);
}

/// What finds no room in the table is copied. The table is the same for all refreshes.
TEST_P(GpuServingDeltas, TheTableHasALimit) {
  Trained model({130'000, 130'000, 130'000});
  publish(model);
  const ServerMemory server = server_of(model);
  const auto tensors = must(DeviceTensors::bind(device_, server.tensors(), {.bytes_max = 17'000}));
  const Stream stream = must(device_->create_stream());
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  const std::uint64_t before = used();
  for (const std::size_t stride : {100, 20, 10, 2000}) {
    for (std::size_t tensor = 0; tensor < 3; ++tensor) model.touch(tensor, tensor, stride);
    publish(model);
    std::uint64_t room = 17'000;
    std::uint64_t expected = 0;
    for (std::uint32_t tensor = 0; tensor < 3; ++tensor) {
      const auto* const delta = subscriber_->snapshot().delta(tensor);
      ASSERT_NE(delta, nullptr) << "stride " << stride;
      if (delta->table_bytes() > room) continue;
      room -= delta->table_bytes();
      ++expected;
    }
    EXPECT_TRUE(stride < 50 ? expected < 3 : expected == 3) << expected << " of stride " << stride;
    const DeviceRefresh refreshed = refresh(tensors, stream);
    EXPECT_EQ(refreshed.tensors, 3U);
    EXPECT_EQ(refreshed.deltas, expected) << "stride " << stride;
    must(tensors->wait(kPatience));
    EXPECT_LE(used() - before, 64U << 10);
    expect_holds(server, model);
  }
}

/// While the device still has the table, the next refresh copies: it makes no second one, and waits for nothing.
TEST_P(GpuServingDeltas, OneTableIsAll) {
  if (!GetParam().is_host) GTEST_SKIP() << "only the host device can be held";
  Trained model({200'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  host().hold(true);
  std::uint64_t with_table = 0;
  for (std::uint64_t version = 2; version <= 4; ++version) {
    model.touch(0, version, 500);
    publish(model);
    const DeviceRefresh refreshed = refresh(tensors, stream);
    EXPECT_EQ(refreshed.deltas, version == 2 ? 1U : 0U) << "version " << version;
    if (version == 2) with_table = used();
    EXPECT_EQ(used(), with_table) << "version " << version;
  }
  host().hold(false);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(GpuServingDeltas, WithoutMemoryForATableTensorsAreCopiedAndTheReasonIsSaidOnce) {
  if (!GetParam().is_host) GTEST_SKIP() << "a real device's memory is others' too";
  Trained model({200'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  const Memory rest = must(device_->allocate(must(device_->room()).free));
  HeardLog log;
  for (std::uint64_t version = 2; version <= 4; ++version) {
    model.touch(0, version, 500);
    publish(model);
    EXPECT_EQ(refresh(tensors, stream).deltas, 0U);
    must(tensors->wait(kPatience));
    expect_holds(server, model);
  }
  EXPECT_EQ(log.count("tensors that come by delta are copied whole"), 1U);
}

/// What holds another version than the delta's base is copied: after forget(), after a version that was passed over,
/// and in tensors that are bound late.
TEST_P(GpuServingDeltas, WithoutTheBaseATensorIsCopied) {
  Trained model({120'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  for (std::uint64_t version = 2; version <= 4; ++version) {
    model.touch(0, version, 500);
    publish(model);
    ASSERT_NE(subscriber_->snapshot().delta(0), nullptr);
    if (version == 2) tensors->forget();
    if (version == 3) continue;
    EXPECT_EQ(refresh(tensors, stream).deltas, 0U) << "version " << version;
  }
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

TEST_P(GpuServingDeltas, ATensorThatChangedALotIsCopied) {
  Trained model({120'000});
  const auto [server, tensors, stream] = bound_to(model);
  refresh(tensors, stream);
  model.touch(0, 0, 3);
  publish(model);
  EXPECT_EQ(refresh(tensors, stream).deltas, 0U);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

/// Of a device that launches nothing.
TEST_P(GpuServingDeltas, WithoutKernelsTensorsAreCopied) {
  if (!GetParam().is_host) GTEST_SKIP() << "only the host device can be told to have none";
  open_host({.seed = seed_, .compute_major = 7});
  Trained model({120'000});
  const auto [server, tensors, stream] = bound_to(model);
  for (std::uint64_t version = 2; version <= 3; ++version) {
    refresh(tensors, stream);
    model.touch(0, version, 500);
    publish(model);
  }
  refresh(tensors, stream);
  must(tensors->wait(kPatience));
  expect_holds(server, model);
}

}  // namespace
}  // namespace freshet::gpu
