// SPDX-License-Identifier: Apache-2.0
// One pass over tensors and their segments: bytes, digests and deltas, while the tensors are written again.

#include <algorithm>
#include <iostream>
#include <random>

#include "core/gpu/packer.h"
#include "tests/core/gpu/gpu_conformance.h"
#include "tests/support/this_build.h"

namespace freshet::gpu {
namespace {

/// Tensors of a training loop, the segments that have earlier values of them, and a copy of these on the host.
struct PassModel {
  PassModel(Device& of, const std::vector<std::uint64_t>& element_counts, DType dtype, std::mt19937_64& random)
      : device(of), type(dtype) {
    for (const std::uint64_t count : element_counts) {
      offsets.push_back((bytes + 15) / 16 * 16);
      sizes.push_back(count * word_bytes_of(dtype));
      bytes = offsets.back() + sizes.back();
    }
    values = test::seeded_bytes(bytes, random());
    on_host = values;
    tensors = must(device.allocate(bytes));
    segments = must(device.allocate(bytes));
  }

  void change(double share, std::mt19937_64& random) {
    std::bernoulli_distribution is_changed(share);
    for (std::byte& value : values) {
      if (is_changed(random)) value ^= std::byte{0x11};
    }
  }
  /// `values` and `rubbish` stay until the stream has run.
  Status pass(Packer& packer, StreamHandle stream, bool is_packed, const std::vector<std::byte>& rubbish,
              Packer::Job& job) {
    std::vector<Packer::Tensor> table;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      table.push_back({.from = {tensors.address() + offsets[i], sizes[i]},
                       .to = segments.address() + offsets[i],
                       .dtype = type,
                       .is_packed = is_packed});
    }
    FRESHET_TRY(device.copy(stream, tensors.address(), values.data(), values.size()));
    FRESHET_TRY(packer.queue(stream, table, job));
    // The next step writes the tensors when the first half has run.
    FRESHET_TRY(device.copy(stream, tensors.address(), rubbish.data(), rubbish.size()));
    return packer.finish(stream, job);
  }
  Bytes value_of(std::size_t tensor) const { return {values.data() + offsets[tensor], sizes[tensor]}; }
  MutableBytes host_copy_of(std::size_t tensor) { return {on_host.data() + offsets[tensor], sizes[tensor]}; }

  Device& device;
  DType type;
  std::vector<std::uint64_t> offsets, sizes;
  std::uint64_t bytes = 0;
  std::vector<std::byte> values, on_host;
  Memory tensors, segments;
};

class GpuPasses : public GpuConformance {
 protected:
  void SetUp() override {
    GpuConformance::SetUp();
    if (lacks_kernels()) GTEST_SKIP() << why_no_fatbin();
    std::cout << "FRESHET_GPU_SEED=" << seed_ << "\n";
  }

  /// Passes over the model as it is now, and compares all that came of it. Returns how many tensors had a delta.
  std::size_t expect_pass(PassModel& model, Packer& packer, bool is_packed) {
    const Stream stream = must(device_->create_stream());
    const std::vector<std::byte> rubbish(model.bytes, std::byte{0xEE});
    const auto job = std::make_shared<Packer::Job>();
    must(model.pass(packer, stream.handle(), is_packed, rubbish, *job));
    finish(stream.handle());
    EXPECT_TRUE(job->is_whole());
    const std::vector<Digest> digests = job->digests();
    std::size_t deltas = 0;
    for (std::size_t i = 0; i < model.sizes.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "tensor " << i << " of " << model.sizes[i] << " bytes");
      EXPECT_EQ(to_hex(digests[i]), to_hex(digest_of(model.value_of(i))));
      EXPECT_TRUE(test::same_bytes(read(model.segments.address() + model.offsets[i], model.sizes[i]),
                                   std::vector<std::byte>(model.value_of(i).begin(), model.value_of(i).end())));
      if (job->has_delta(i)) {
        ++deltas;
        const PackedDelta delta(job, i);
        EXPECT_LT(delta.blocks().size(), model.sizes[i] / 4);
        must(delta.apply(read(delta.blocks().data(), delta.blocks().size()), model.host_copy_of(i)));
      }
    }
    if (deltas == model.sizes.size()) {
      EXPECT_EQ(model.on_host, model.values) << "a delta led elsewhere";
    }
    model.on_host = model.values;
    return deltas;
  }
};

TEST_P(GpuPasses, TheSegmentsDigestsAndDeltasAreThoseOfTheValuesAtTheCall) {
  in_many_orders(
      [&] {
        std::mt19937_64 random(seed_ + infos_.size());
        for (const DType dtype : {DType::bf16, DType::f32, DType::u8}) {
          PassModel model(*device_, {241, 1024, 8192, 8193, 20'001}, dtype, random);
          Packer packer(device_);
          EXPECT_EQ(expect_pass(model, packer, /*is_packed=*/false), 0U);  // The segments have anything.
          for (int version = 0; version < 3; ++version) {
            model.change(0.004, random);
            EXPECT_GE(expect_pass(model, packer, /*is_packed=*/true), 4U);
          }
        }
      },
      test::under_sanitizer() ? 1 : 3);
}

TEST_P(GpuPasses, ManyChangesFindNoRoomAndTheSegmentsAreRightAllTheSame) {
  std::mt19937_64 random(seed_);
  PassModel model(*device_, {40'000, 300}, DType::bf16, random);
  Packer packer(device_);
  expect_pass(model, packer, false);
  model.change(0.7, random);
  EXPECT_EQ(expect_pass(model, packer, true), 0U);
  EXPECT_EQ(expect_pass(model, packer, true), 2U) << "nothing changed";
}

TEST_P(GpuPasses, ADeltaStaysAsLongAsItIsHeld) {
  std::mt19937_64 random(seed_);
  PassModel model(*device_, {9000}, DType::f32, random);
  Packer packer(device_);
  expect_pass(model, packer, false);
  const Stream stream = must(device_->create_stream());
  const std::vector<std::byte> rubbish(model.bytes);
  model.change(0.001, random);
  const std::vector<std::byte> kept_values = model.values;
  auto job = std::make_shared<Packer::Job>();
  must(model.pass(packer, stream.handle(), true, rubbish, *job));
  finish(stream.handle());
  ASSERT_TRUE(job->has_delta(0));
  const PackedDelta kept(std::exchange(job, nullptr), 0);
  std::vector<std::byte> on_host = std::exchange(model.on_host, model.values);
  for (int version = 0; version < 3; ++version) {
    model.change(0.001, random);
    EXPECT_EQ(expect_pass(model, packer, true), 1U);
  }
  must(kept.apply(read(kept.blocks().data(), kept.blocks().size()), on_host));
  EXPECT_EQ(on_host, kept_values);
}

TEST_P(GpuPasses, MemoryThatHasOtherBytesIsFound) {
  std::mt19937_64 random(seed_);
  PassModel model(*device_, {9000}, DType::bf16, random);
  Packer packer(device_);
  expect_pass(model, packer, false);
  for (std::byte& value : std::span(model.values).first(20)) value ^= std::byte{1};
  const Stream stream = must(device_->create_stream());
  const std::vector<std::byte> rubbish(model.bytes);
  const auto job = std::make_shared<Packer::Job>();
  must(model.pass(packer, stream.handle(), true, rubbish, *job));
  finish(stream.handle());
  ASSERT_TRUE(job->has_delta(0));
  const PackedDelta delta(job, 0);
  model.on_host[4] ^= std::byte{4};
  EXPECT_EQ(code_of(delta.apply(read(delta.blocks().data(), delta.blocks().size()), model.on_host)), "corrupt");
}

TEST_P(GpuPasses, WhatItDoesNotTake) {
  EXPECT_FALSE(Packer::takes(0, DType::u8));
  EXPECT_FALSE(Packer::takes(240, DType::u8));
  EXPECT_TRUE(Packer::takes(241, DType::u8));
  EXPECT_FALSE(Packer::takes(241, DType::bf16));
  EXPECT_TRUE(Packer::takes(kDigestPartBytes, DType::f64));
  EXPECT_FALSE(Packer::takes(kDigestPartBytes + 240, DType::f64)) << "the host digests the last part";
  EXPECT_TRUE(Packer::takes(kDigestPartBytes + 248, DType::f64));
}

TEST_P(GpuPasses, WithoutRoomOrKernelsNothingIsWritten) {
  if (!GetParam().is_host) GTEST_SKIP() << "a real device has too much memory to fill, and has kernels";
  std::mt19937_64 random(seed_);
  for (const bool is_old : {false, true}) {
    HostPlatform platform(HostOptions{.seed = seed_, .compute_major = is_old ? 7 : 8});
    const auto device = must(platform.open(host_device_uuid(0)));
    PassModel model(*device, {90'000}, DType::bf16, random);
    const Stream stream = must(device->create_stream());
    must(device->copy(stream.handle(), model.segments.address(), model.on_host.data(), model.bytes));
    const Memory rest = must(device->allocate(is_old ? 4096 : must(device->room()).free));
    model.change(0.01, random);
    const std::vector<std::byte> rubbish(model.bytes);
    Packer packer(device);
    Packer::Job job;
    EXPECT_EQ(code_of(model.pass(packer, stream.handle(), true, rubbish, job)),
              is_old ? "unsupported" : "out_of_space");
    EXPECT_FALSE(job.is_whole());
    std::vector<std::byte> now(model.bytes);
    must(device->copy(stream.handle(), now.data(), model.segments.address(), model.bytes));
    must(device->drain(kPatience));
    EXPECT_EQ(now, model.on_host);
  }
}

/// One case where a driver and a device are, none elsewhere: GpuDriver tells the reason.
std::vector<EngineCase> pass_driver_cases() {
  if (!open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, GpuPasses, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuPasses, testing::ValuesIn(pass_driver_cases()));

}  // namespace
}  // namespace freshet::gpu
