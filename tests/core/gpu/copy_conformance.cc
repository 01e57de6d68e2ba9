// SPDX-License-Identifier: Apache-2.0
// Copies, and launches of kernels.

#include <limits>
#include <numeric>

#include "tests/core/gpu/gpu_conformance.h"

namespace freshet::gpu {
namespace {

TEST_P(GpuConformance, CopiesHaveOddSizesAndPlaces) {
  constexpr std::uint64_t kRoom = (1 << 20) + 64;
  const Memory one = must(device_->allocate(kRoom));
  const Memory other = must(device_->allocate(kRoom));
  const Stream stream = must(device_->create_stream());
  for (const std::uint64_t bytes : {1, 2, 3, 5, 7, 15, 16, 17, 63, 65, 255, 257, 4095, 4097, 65'537, (1 << 20) + 1}) {
    const std::uint64_t at = bytes % 13;
    SCOPED_TRACE(bytes);
    const auto sent = test::seeded_bytes(bytes, bytes);
    auto expected = test::seeded_bytes(kRoom, 5);
    write(other.address(), expected);
    must(device_->copy(stream.handle(), one.address() + at, sent.data(), bytes));
    must(device_->copy(stream.handle(), other.address() + at + 1, one.address() + at, bytes));
    finish(stream.handle());
    std::copy(sent.begin(), sent.end(), expected.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    EXPECT_TRUE(test::same_bytes(read(other.address(), kRoom), expected));
  }
}

TEST_P(GpuConformance, NoBytesAreDoneAtOnce) {
  const Memory memory = filled(100, 1);
  const Stream stream = must(device_->create_stream());
  must(device_->copy(stream.handle(), memory.address(), memory.address() + 50, 0));
  must(device_->copy(stream.handle(), nullptr, nullptr, 0));
  must(device_->copy(stream.handle(), memory.address() + memory.bytes(), memory.address(), 0));
  finish(stream.handle());
  expect_bytes(memory.address(), 100, 1);
}

TEST_P(GpuConformance, OverlappingRangesAreRefused) {
  const Memory memory = filled(8192, 1);
  const Stream stream = must(device_->create_stream());
  std::byte* const at = memory.address();
  EXPECT_EQ(code_of(device_->copy(stream.handle(), at, at, 1)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), at + 100, at, 101)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), at, at + 100, 101)), "invalid_argument");
  must(device_->copy(stream.handle(), at + 100, at, 100));
  finish(stream.handle());
}

TEST_P(GpuConformance, ACopyPastItsMemorysEndIsRefused) {
  const Memory memory = filled(8192, 1);
  const auto source = test::seeded_bytes(2 * memory.bytes(), 2);
  std::vector<std::byte> target(2 * memory.bytes());
  const Stream stream = must(device_->create_stream());
  const std::uint64_t all = memory.bytes();
  // In Device's words: it must not leave this to an engine.
  for (const auto& [at, bytes] :
       {std::pair(std::uint64_t{0}, all + 1), std::pair(all - 1, std::uint64_t{2}), std::pair(all / 2, all)}) {
    const std::string past = "runs " + std::to_string(at + bytes - all) + " bytes past its memory's end";
    const Status in = device_->copy(stream.handle(), memory.address() + at, source.data(), bytes);
    EXPECT_EQ(code_of(in), "invalid_argument");
    EXPECT_THAT(words_of(in), testing::HasSubstr("the destination " + past));
    const Status out = device_->copy(stream.handle(), target.data(), memory.address() + at, bytes);
    EXPECT_EQ(code_of(out), "invalid_argument");
    EXPECT_THAT(words_of(out), testing::HasSubstr("the source " + past));
  }
  const Status into = device_->copy(stream.handle(), memory.address() - 1, source.data(), 2);
  EXPECT_EQ(code_of(into), "invalid_argument");
  EXPECT_THAT(words_of(into), testing::HasSubstr("the destination begins before memory of ours"));
  expect_bytes(memory.address(), 8192, 1);
}

TEST_P(GpuConformance, AddressesThatAreNoneAreRefused) {
  const Memory memory = filled(8192, 1);
  const Stream stream = must(device_->create_stream());
  auto* const last = reinterpret_cast<std::byte*>(std::numeric_limits<std::uintptr_t>::max() - 10);
  EXPECT_EQ(code_of(device_->copy(stream.handle(), memory.address(), nullptr, 8)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), nullptr, memory.address(), 8)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), memory.address(), last, 100)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), last, memory.address(), 100)), "invalid_argument");
  EXPECT_EQ(code_of(device_->copy(stream.handle(), memory.address(), last, std::numeric_limits<std::uint64_t>::max())),
            "invalid_argument");
  expect_bytes(memory.address(), 8192, 1);
}

TEST_P(GpuConformance, ACopyBetweenTwoDevicesIsRefused) {
  if (infos_.size() < 2) GTEST_SKIP() << "one device is here";
  const auto other = must(platform_->open(infos_[1].uuid));
  const Memory here = filled(50'001, 1);
  const Memory there = must(other->allocate(50'001));
  const Stream stream = must(device_->create_stream());
  const Stream theirs = must(other->create_stream());
  std::vector<std::byte> back(50'001);
  for (const bool sends : {true, false}) {
    void* const to = sends ? there.address() : here.address();
    const Status refused = device_->copy(stream.handle(), to, sends ? here.address() : there.address(), 50'001);
    EXPECT_EQ(code_of(refused), "unsupported");
    EXPECT_THAT(words_of(refused), testing::HasSubstr(std::string(sends ? "the destination" : "the source") +
                                                      " is memory of device " + infos_[1].uuid.text()));
  }
  // Through host memory, one device's event orders the other's copy.
  const Event sent = must(device_->create_event());
  must(device_->copy(stream.handle(), back.data(), here.address(), 50'001));
  must(device_->record(sent, stream.handle()));
  must(other->make_wait(theirs.handle(), sent.handle()));
  must(other->copy(theirs.handle(), there.address(), back.data(), 50'001));
  must(other->drain(kPatience));
  std::fill(back.begin(), back.end(), std::byte{0});
  must(other->copy(theirs.handle(), back.data(), there.address(), 50'001));
  must(other->drain(kPatience));
  EXPECT_TRUE(test::same_bytes(back, test::seeded_bytes(50'001, 1)));
}

TEST_P(GpuConformance, AKernelFillsOddRanges) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  constexpr std::uint64_t kRoom = 70'000;
  const Memory memory = must(device_->allocate(kRoom));
  const Stream stream = must(device_->create_stream());
  for (const std::uint64_t bytes : {1, 3, 17, 255, 4097, 65'537}) {
    SCOPED_TRACE(bytes);
    auto expected = test::seeded_bytes(kRoom, bytes);
    write(memory.address(), expected);
    const FillArguments arguments{
        .to = reinterpret_cast<std::uint8_t*>(memory.address()) + 7, .bytes = bytes, .value = 0x3c};
    must(device_->launch(stream.handle(), {.kernel = Kernel::kFill, .blocks = 2, .threads = 256, .shared_bytes = 0},
                         arguments));
    finish(stream.handle());
    std::fill_n(expected.begin() + 7, bytes, std::byte{0x3c});
    EXPECT_TRUE(test::same_bytes(read(memory.address(), kRoom), expected));
  }
}

/// Copies rows by one launch over a table that lies on the device.
struct RowTable {
  std::vector<CopyTensor> rows;
  std::uint64_t tiles = 0;

  void add(const std::byte* from, std::byte* to, std::uint64_t bytes) {
    rows.push_back({.from = reinterpret_cast<const std::uint8_t*>(from),
                    .to = reinterpret_cast<std::uint8_t*>(to),
                    .bytes = bytes,
                    .first_tile = tiles});
    tiles += (bytes + kCopyTileBytes - 1) / kCopyTileBytes;
  }
};

TEST_P(GpuConformance, ATableOfManyRowsIsOneLaunch) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  constexpr std::uint64_t kRows = 100'000;
  std::uint64_t room = 0;
  for (std::uint64_t i = 0; i < kRows; ++i) room += i % 61 + 1;
  const Memory from = filled(room, 1);
  const Memory to = filled(room + 1, 2);
  RowTable table;
  for (std::uint64_t i = 0, at = 0; i < kRows; at += i % 61 + 1, ++i)
    table.add(from.address() + at, to.address() + at + 1, i % 61 + 1);
  const Memory rows = must(device_->allocate(kRows * sizeof(CopyTensor)));
  write(rows.address(), std::as_bytes(std::span(table.rows)));
  const Stream stream = must(device_->create_stream());
  const CopyArguments arguments{
      .tensors = reinterpret_cast<const CopyTensor*>(rows.address()), .tensor_count = kRows, .tiles = table.tiles};
  must(device_->launch(stream.handle(), {.kernel = Kernel::kCopy, .blocks = 64, .threads = 256, .shared_bytes = 0},
                       arguments));
  finish(stream.handle());
  expect_bytes(to.address() + 1, room, 1);
  EXPECT_EQ(read(to.address(), 1)[0], test::seeded_bytes(room + 1, 2)[0]);
}

TEST_P(GpuConformance, AnEmptyTableCopiesNothing) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  const Stream stream = must(device_->create_stream());
  must(device_->launch(stream.handle(), {.kernel = Kernel::kCopy, .blocks = 4, .threads = 128, .shared_bytes = 0},
                       CopyArguments{.tensors = nullptr, .tensor_count = 0, .tiles = 0}));
  finish(stream.handle());
  expect_works();
}

TEST_P(GpuConformance, EventsOrderKernelsAndCopies) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  in_many_orders([&] {
    const Memory memory = filled(9001, 1);
    const Memory kept = filled(9001, 2);
    const Stream one = must(device_->create_stream());
    const Stream other = must(device_->create_stream());
    const Event kept_is_there = must(device_->create_event());
    must(device_->copy(one.handle(), kept.address(), memory.address(), 9001));
    must(device_->record(kept_is_there, one.handle()));
    must(device_->make_wait(other.handle(), kept_is_there.handle()));
    const FillArguments zeros{.to = reinterpret_cast<std::uint8_t*>(memory.address()), .bytes = 9001, .value = 0};
    must(device_->launch(other.handle(), {.kernel = Kernel::kFill, .blocks = 1, .threads = 64, .shared_bytes = 0},
                         zeros));
    finish(other.handle());
    expect_bytes(kept.address(), 9001, 1);
    EXPECT_TRUE(test::all_bytes_are(read(memory.address(), 9001), std::byte{0}));
  });
}

TEST_P(GpuConformance, LaunchesThatCannotBeAreRefused) {
  const Stream stream = must(device_->create_stream());
  const FillArguments nothing{.to = nullptr, .bytes = 0, .value = 0};
  const auto code = [&](std::uint32_t blocks, std::uint32_t threads, std::uint32_t shared_bytes) {
    return code_of(device_->launch(
        stream.handle(), {.kernel = Kernel::kFill, .blocks = blocks, .threads = threads, .shared_bytes = shared_bytes},
        nothing));
  };
  EXPECT_EQ(code(0, 128, 0), "invalid_argument");
  EXPECT_EQ(code(0xffffffff, 128, 0), "invalid_argument");
  EXPECT_EQ(code(1, 0, 0), "invalid_argument");
  EXPECT_EQ(code(1, 1, 0), "invalid_argument");
  EXPECT_EQ(code(1, 127, 0), "invalid_argument");
  EXPECT_EQ(code(1, 1056, 0), "invalid_argument");
  EXPECT_EQ(code(1, 128, 1 << 20), "invalid_argument");
  EXPECT_EQ(code(1, 128, 1), "invalid_argument");
  EXPECT_EQ(code(kBlocksMax + 1, 128, 0), "invalid_argument");
  const Launch launch{.kernel = Kernel::kFill, .blocks = 1, .threads = 128, .shared_bytes = 0};
  const std::vector<std::byte> arguments(5000);
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, sizeof(FillArguments) - 1, sizeof(FillArguments) + 1, arguments.size()}) {
    EXPECT_EQ(code_of(device_->launch(stream.handle(), launch, std::span(arguments).first(bytes))), "invalid_argument")
        << bytes;
  }
  expect_works();
}

TEST_P(GpuConformance, UnloadedKernelsAreLoadedAgain) {
  if (lacks_kernels()) GTEST_SKIP() << "this build has no kernels for a GPU (nvcc was not there)";
  const Memory memory = filled(1000, 1);
  const Stream stream = must(device_->create_stream());
  for (const std::uint8_t value : {1, 2}) {
    const FillArguments arguments{
        .to = reinterpret_cast<std::uint8_t*>(memory.address()), .bytes = 1000, .value = value};
    must(device_->launch(stream.handle(), {.kernel = Kernel::kFill, .blocks = 1, .threads = 128, .shared_bytes = 0},
                         arguments));
    must(device_->unload(kPatience));  // Waits for the launch.
    EXPECT_TRUE(test::all_bytes_are(read(memory.address(), 1000), std::byte{value}));
  }
  must(device_->unload(kPatience));
  must(device_->unload(kPatience));
}

}  // namespace
}  // namespace freshet::gpu
