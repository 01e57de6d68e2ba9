// SPDX-License-Identifier: Apache-2.0
// Which values a version of tensors on a GPU has, and that no publish of them waits.

#include <cstring>
#include <iostream>

#include "tests/support/this_build.h"
#include "tests/transport/publish/gpu/device_lab.h"

namespace freshet::test {
namespace {

using gpu::must;

class DevicePublish : public DeviceLab {};

const std::vector<std::uint64_t> kOddSizes = {1, 63, 0, 4096, 40'001, 7, 100'003};

TEST_P(DevicePublish, AVersionHasWhatTheStreamHadQueued) {
  std::cout << "seed " << seed_ << "\n";
  in_many_orders([&] {
    DeviceModel model(trainer_, kOddSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    for (std::uint64_t number = 1; number <= 4 && !HasFailure(); ++number) {
      hold(true);
      model.write(step.handle(), 100 + number);
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 1000 * number + i);
      const Values values = model.values();
      const auto receipt = publisher_->publish(model.views(step.handle()), {.step = number});
      ASSERT_TRUE(receipt) << receipt.error().message();
      EXPECT_EQ(receipt->captured_tensors, kOddSizes.size());
      // The tensors are written again, and so is their memory after they were freed in the stream's order.
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 5000 + i);
      hold(false);
      expect_served(receipt->version, values);
    }
  });
}

TEST_P(DevicePublish, TheDefaultStreamsAreOrderedToo) {
  in_many_orders(
      [&] {
        DeviceModel model(trainer_, kOddSizes);
        for (const std::uintptr_t number : {0, 1, 2}) {
          const auto stream = gpu::StreamHandle::of(number);
          hold(true);
          model.write(stream, 10 + number);
          const Values values = model.values();
          const auto receipt = publisher_->publish(model.views(stream), {.step = number});
          ASSERT_TRUE(receipt) << receipt.error().message();
          model.write(stream, 20 + number);
          hold(false);
          expect_served(receipt->version, values);
          finish(stream);
        }
      },
      4);
}

TEST_P(DevicePublish, TensorsOfTwoStreamsAndOfTheHostMakeOneVersion) {
  in_many_orders([&] {
    DeviceModel one(trainer_, {5000, 33}, 0, "one");
    DeviceModel other(trainer_, {70'001}, 0, "other");
    auto host_bytes = seeded_bytes(3000, 1);
    const gpu::Stream first = must(trainer_->create_stream());
    const gpu::Stream second = must(trainer_->create_stream());
    hold(true);
    one.write(first.handle(), 2);
    other.write(second.handle(), 3);
    std::vector<TensorView> views = one.views(first.handle());
    const auto more = other.views(second.handle());
    views.push_back({.spec = {.name = "host.w", .dtype = DType::u8, .shape = {3000}}, .data = host_bytes});
    views.insert(views.end(), more.begin(), more.end());
    const Values values = {one.values()[0], one.values()[1], host_bytes, other.values()[0]};
    const auto receipt = publisher_->publish(views, {.step = 1});
    ASSERT_TRUE(receipt) << receipt.error().message();
    std::ranges::fill(host_bytes, std::byte{0});  // The host's copy is done.
    one.write(first.handle(), 4);
    other.write(second.handle(), 5);
    hold(false);
    expect_served(receipt->version, values);
  });
}

TEST_P(DevicePublish, TensorsOfTwoDevicesMakeOneVersion) {
  if (must(platform_->devices()).size() < 2) GTEST_SKIP() << "this machine has one GPU";
  in_many_orders([&] {
    const auto second_device = must(platform_->open(must(platform_->devices())[1].uuid));
    DeviceModel one(trainer_, {5000}, 0, "one");
    DeviceModel other(second_device, {6001}, 1, "other");
    const gpu::Stream first = must(trainer_->create_stream());
    const gpu::Stream second = must(second_device->create_stream());
    hold(true);
    one.write(first.handle(), 2);
    other.write(second.handle(), 3);
    std::vector<TensorView> views = one.views(first.handle());
    views.push_back(other.views(second.handle()).front());
    const Values values = {one.values()[0], other.values()[0]};
    const auto receipt = publisher_->publish(views, {.step = 1});
    ASSERT_TRUE(receipt) << receipt.error().message();
    one.write(first.handle(), 4);
    other.write(second.handle(), 5);
    hold(false);
    expect_served(receipt->version, values);
  });
}

TEST_P(DevicePublish, OnlyChangedTensorsAreTheVersionsOwn) {
  DeviceModel model(trainer_, kOddSizes);
  const gpu::Stream step = must(trainer_->create_stream());
  model.write(step.handle(), 1);
  const auto first = publisher_->publish(model.views(step.handle()), {});
  ASSERT_TRUE(first) << first.error().message();
  expect_served(first->version, model.values());
  model.write(step.handle(), 3, 2);
  const auto second = publisher_->publish(model.views(step.handle()), {});
  ASSERT_TRUE(second) << second.error().message();
  expect_served(second->version, model.values());
  EXPECT_EQ(must(publisher_->wait_committed(second->version, kPatience)).changed_tensors, 1U);
  model.write(step.handle(), 4, 3);
  const auto named = publisher_->publish(model.views(step.handle()), {.changed = Changed::only({4})});
  ASSERT_TRUE(named) << named.error().message();
  EXPECT_EQ(named->captured_tensors, 1U);
  expect_served(named->version, model.values());
}

TEST_P(DevicePublish, LayersAreCapturedAsTheirUpdatesAreQueued) {
  in_many_orders([&] {
    DeviceModel model(trainer_, kOddSizes);
    const gpu::Stream step = must(trainer_->create_stream());
    BoundTensors bound = publisher_->bind(model.views(step.handle()));
    for (std::uint64_t number = 1; number <= 3 && !HasFailure(); ++number) {
      hold(true);
      ASSERT_TRUE(bound.begin());
      Values values(model.size());
      for (std::uint32_t i = 0; i + 2 < model.size(); ++i) {
        model.write(step.handle(), i, 10 * number + i);
        ASSERT_TRUE(bound.capture({{i}}));
        model.write(step.handle(), i, 1000);
        if (i == 3) {  // Once more: the later copy counts, and nobody waits for the earlier one.
          model.write(step.handle(), i, 10 * number + 9);
          ASSERT_TRUE(bound.capture({{i}}));
        }
        values[i] = seeded_bytes(kOddSizes[i], 10 * number + (i == 3 ? 9 : i));
        model.write(step.handle(), i, 2000);
      }
      for (std::size_t i = model.size() - 2; i < model.size(); ++i) {
        model.write(step.handle(), i, 20 * number + i);
        values[i] = seeded_bytes(kOddSizes[i], 20 * number + i);
      }
      const auto receipt = bound.end({.step = number});
      ASSERT_TRUE(receipt) << receipt.error().message();
      for (std::size_t i = 0; i < model.size(); ++i) model.write(step.handle(), i, 3000);
      hold(false);
      expect_served(receipt->version, values);
    }
  });
}

TEST_P(DevicePublish, TheStreamOfBoundTensorsMayBeAnother) {
  in_many_orders([&] {
    DeviceModel model(trainer_, kOddSizes);
    BoundTensors bound = publisher_->bind(model.views({}));
    for (std::uint64_t number = 1; number <= 3 && !HasFailure(); ++number) {
      const gpu::Stream step = must(trainer_->create_stream());
      bound.set_stream(1, 0xdead);  // Of a device that has none of them.
      bound.set_stream(0, reinterpret_cast<std::uintptr_t>(step.handle().native));
      hold(true);
      model.write(step.handle(), number);
      const Values values = model.values();
      const auto receipt = bound.publish({.step = number});
      ASSERT_TRUE(receipt) << receipt.error().message();
      model.write(step.handle(), 100 + number);
      hold(false);
      expect_served(receipt->version, values);
      finish(step.handle());
    }
  });
}

TEST_P(DevicePublish, NotANumberKeepsItsBits) {
  DeviceModel model(trainer_, {400});
  const gpu::Stream step = must(trainer_->create_stream());
  std::vector<std::uint32_t> words(100);
  for (std::uint32_t i = 0; i < words.size(); ++i)
    words[i] = (i % 2 == 0 ? 0x7f800001U : 0xffc00000U) + i;  // Signaling, quiet.
  Values values(1, std::vector<std::byte>(400));
  std::memcpy(values[0].data(), words.data(), 400);
  must(trainer_->copy(step.handle(), model.address(0), words.data(), 400));
  auto views = model.views(step.handle());
  views[0].spec.dtype = DType::f32;
  views[0].spec.shape = {10, 10};
  const auto receipt = publisher_->publish(views, {});
  ASSERT_TRUE(receipt) << receipt.error().message();
  expect_served(receipt->version, values);
}

TEST_P(DevicePublish, AHundredThousandTensorsAreFewLaunches) {
  std::vector<std::uint64_t> sizes(under_sanitizer() ? 10'000 : 100'000);
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = 1 + i % 13;
  sizes[77] = 300'001;  // Beyond what goes by the table.
  sizes[78] = 0;
  DeviceModel model(trainer_, sizes);
  const gpu::Stream step = must(trainer_->create_stream());
  model.write(step.handle(), 1);
  const std::uint64_t turns = host_ != nullptr ? host_->turns() : 0;
  const auto receipt = publisher_->publish(model.views(step.handle()), {});
  ASSERT_TRUE(receipt) << receipt.error().message();
  const Values values = model.values();
  model.write(step.handle(), 2);
  expect_served(receipt->version, values);
  if (host_ != nullptr) {
    EXPECT_LT(host_->turns() - turns, 200U);
  }
}

TEST_P(DevicePublish, ALoopThatIsAheadSkipsAndNothingIsLost) {
  if (host_ == nullptr) GTEST_SKIP() << "a real device's work cannot be held";
  in_many_orders(
      [&] {
        DeviceModel model(trainer_, kOddSizes);
        const gpu::Stream step = must(trainer_->create_stream());
        hold(true);
        std::vector<Values> values;
        std::vector<VersionNumber> versions;
        for (std::uint64_t number = 1; number <= 2; ++number) {
          model.write(step.handle(), number);
          values.push_back(model.values());
          const auto receipt = publisher_->publish(model.views(step.handle()), {});
          ASSERT_TRUE(receipt) << receipt.error().message();
          versions.push_back(receipt->version);
        }
        model.write(step.handle(), 4, 3);
        const auto skipped = publisher_->publish(model.views(step.handle()), {.changed = Changed::only({4})});
        ASSERT_FALSE(skipped);
        EXPECT_EQ(skipped.error().code(), Code::out_of_space);
        EXPECT_NE(skipped.error().message().find("not sealed yet"), std::string::npos) << skipped.error().message();
        BoundTensors bound = publisher_->bind(model.views(step.handle()));
        EXPECT_EQ(gpu::code_of(bound.begin()), "out_of_space");
        EXPECT_EQ(publisher_->stat().versions_skipped, 2U);
        hold(false);
        ASSERT_TRUE(publisher_->wait_committed(versions[0], kPatience));
        expect_served(versions[1], values[1]);
        // Nothing is named, and the skipped version's tensor comes all the same.
        const auto next = publisher_->publish(model.views(step.handle()), {.changed = Changed::only({})});
        ASSERT_TRUE(next) << next.error().message();
        EXPECT_EQ(next->version, versions[1] + 1) << "a skipped version takes no number";
        expect_served(next->version, model.values());
      },
      4);
}

/// One case where a driver and a device are, none elsewhere: the reason is told once, below.
std::vector<gpu::EngineCase> publish_driver_cases() {
  if (!gpu::open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, DevicePublish, testing::Values(gpu::EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, DevicePublish, testing::ValuesIn(publish_driver_cases()));

TEST(GpuDriver, PublishesToo) {
  const auto platform = gpu::open_driver_platform();
  if (!platform) GTEST_SKIP() << platform.error().message();
  std::cout << (*platform)->description() << "\n";
}

}  // namespace
}  // namespace freshet::test
