// SPDX-License-Identifier: Apache-2.0
// Element deltas that are damaged on their way, applied by a device: nothing around the tensors is written, and none is
// taken for right.

#include <cstring>
#include <iostream>
#include <random>

#include "core/delta/element_delta.h"
#include "core/delta/raw_delta.h"
#include "core/gpu/kernels/delta_payload.h"
#include "core/gpu/kernels/tables.h"
#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kElementsOfEach = 3000;
constexpr std::uint32_t kElementsOfBlock = 1000;
constexpr std::uint64_t kRoomOfEach = 8192;  // A tensor, and bytes behind it that are nobody's.
const DeltaSpec kSpecOfEach = {.dtype = DType::bf16, .base = {}, .target = {.tensor = 1}};

template <typename T>
Bytes bytes_of_rows(const std::vector<T>& rows) {
  return std::as_bytes(std::span(rows));
}

TEST_P(GpuConformance, DamagedDeltasWriteNothingAroundTheirTensors) {
  if (lacks_kernels()) GTEST_SKIP() << why_no_fatbin();
  std::cout << "FRESHET_GPU_SEED=" << seed_ << "\n";
  std::mt19937_64 random(seed_);
  const auto base = test::seeded_bytes(2 * kElementsOfEach, seed_);
  auto target = base;
  for (std::size_t i = 0; i < target.size(); i += 2 * (1 + random() % 40)) target[i] ^= std::byte{0x21};
  const auto encoded = encode_delta(kSpecOfEach, base, target, ~std::uint64_t{0});
  ASSERT_TRUE(encoded);
  const auto payload = must(raw_delta(*encoded, kElementsOfBlock));
  const PayloadPlaces expected = must(find_places(kSpecOfEach, kElementsOfEach, payload));
  const Bytes sound = Bytes(payload).subspan(expected.blocks_offset, expected.blocks_bytes);

  // The first delta is sound; of each other one a byte is damaged, of its blocks or of the table of their places.
  const std::size_t count = GetParam().is_host ? 48 : 4096;
  std::vector<std::byte> image = test::seeded_bytes(count * kRoomOfEach, seed_ + 1);
  const std::vector<std::byte> around = image;
  std::vector<std::byte> blocks;
  std::vector<BlockPlace> places;
  for (std::size_t i = 0; i < count; ++i) {
    std::copy(base.begin(), base.end(), image.begin() + static_cast<std::ptrdiff_t>(i * kRoomOfEach));
    std::vector<std::byte> of_this(sound.begin(), sound.end());
    std::vector<BlockPlace> places_of_this = expected.places;
    const auto damage = static_cast<std::byte>(1 + random() % 255);
    if (i > 0 && i % 8 != 0) of_this[random() % of_this.size()] ^= damage;
    if (i > 0 && i % 8 == 0) {
      std::byte* const table = reinterpret_cast<std::byte*>(places_of_this.data());
      table[random() % (places_of_this.size() * sizeof(BlockPlace))] ^= damage;
    }
    blocks.insert(blocks.end(), of_this.begin(), of_this.end());
    places.insert(places.end(), places_of_this.begin(), places_of_this.end());
  }
  const Memory memory = must(device_->allocate(image.size()));
  const Memory blocks_there = must(device_->allocate(blocks.size()));
  const Memory places_there = must(device_->allocate(bytes_of_rows(places).size()));
  std::vector<ApplyTensor> table;
  for (std::size_t i = 0; i < count; ++i) {
    table.push_back({.memory = reinterpret_cast<std::uint8_t*>(memory.address() + i * kRoomOfEach),
                     .elements = delta_elements(kSpecOfEach, kElementsOfEach),
                     .blocks = reinterpret_cast<const std::uint8_t*>(blocks_there.address() + i * sound.size()),
                     .blocks_bytes = sound.size(),
                     .first_tile = 0});
  }
  const std::vector<std::uint64_t> tiles_of(count, expected.places.size());
  const std::uint64_t tiles = number_tiles(std::span(table), tiles_of);
  const Memory table_there = must(device_->allocate(bytes_of_rows(table).size()));
  const std::vector<ApplyResult> none(count);
  const Memory results_there = must(device_->allocate(bytes_of_rows(none).size()));
  write(memory.address(), image);
  write(blocks_there.address(), blocks);
  write(places_there.address(), bytes_of_rows(places));
  write(table_there.address(), bytes_of_rows(table));
  write(results_there.address(), bytes_of_rows(none));
  const Stream stream = must(device_->create_stream());
  must(device_->launch(stream.handle(), {.kernel = Kernel::kApply, .blocks = 7, .threads = 64},
                       ApplyArguments{.tensors = reinterpret_cast<const ApplyTensor*>(table_there.address()),
                                      .tensor_count = count,
                                      .tiles = tiles,
                                      .places = reinterpret_cast<const BlockPlace*>(places_there.address()),
                                      .results = reinterpret_cast<ApplyResult*>(results_there.address())}));
  finish(stream.handle());

  const auto after = read(memory.address(), image.size());
  const auto told = read(results_there.address(), bytes_of_rows(none).size());
  for (std::size_t i = 0; i < count && !HasFailure(); ++i) {
    SCOPED_TRACE(testing::Message() << "delta " << i);
    ApplyResult result;
    std::memcpy(&result, told.data() + i * sizeof(result), sizeof(result));
    EXPECT_EQ(check_applied(expected, result).has_value(), i == 0);
    const std::size_t begin = i * kRoomOfEach;
    const std::size_t end_of_tensor = begin + base.size();
    EXPECT_TRUE(std::equal(after.begin() + static_cast<std::ptrdiff_t>(end_of_tensor),
                           after.begin() + static_cast<std::ptrdiff_t>(begin + kRoomOfEach),
                           around.begin() + static_cast<std::ptrdiff_t>(end_of_tensor)))
        << "bytes behind the tensor were written";
  }
  EXPECT_EQ(std::memcmp(after.data(), target.data(), target.size()), 0) << "the sound one was not applied";
}

}  // namespace
}  // namespace freshet::gpu
