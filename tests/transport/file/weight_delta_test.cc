// SPDX-License-Identifier: Apache-2.0
#include "transport/file/weight_delta.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <random>

#include "core/base/digest.h"
#include "core/base/format.h"

// What no other program writes: frames whose counts and windows are lies. What right ones do stands in
// weight_folder_test.cc.

namespace freshet::file {
namespace {

std::string word(std::uint32_t value) {
  std::string text;
  for (int i = 0; i < 4; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string zstd_frame(const std::string& content) {
  std::string frame(ZSTD_compressBound(content.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), content.data(), content.size(), 3));
  return frame;
}

WeightDelta overwrite() { return *WeightDelta::of("overwrite", "zstd", "xxh3-128"); }

Bytes bytes_in(const std::string& text) { return std::as_bytes(std::span(text)); }

std::int64_t peak_kib() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

/// What applying the frame to a tensor of so many bytes adds to a process's memory at its worst, in KiB; negative when
/// it was not refused as corrupt. In a child, whose peak starts where it stands.
std::int64_t kib_to_refuse(const std::string& frame, std::size_t tensor_bytes) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<std::byte> memory(tensor_bytes, std::byte{1});
    const std::int64_t before = peak_kib();
    const Status status = overwrite().apply(bytes_in(frame), "", memory);
    const bool refused = !status && status.error().code() == Code::corrupt;
    const std::int64_t added = refused ? peak_kib() - before : -2;
    const bool told = ::write(ends[1], &added, sizeof added) == sizeof added;
    ::_exit(told ? 0 : 1);
  }
  std::int64_t added = -3;
  ::close(ends[1]);
  if (::read(ends[0], &added, sizeof added) != sizeof added) added = -4;
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return added;
}

TEST(WeightDelta, ACountCostsNoMemoryBeforeItsBytesAreThere) {
  constexpr std::size_t kTensorBytes = std::size_t{64} << 20;
  const std::string frame = zstd_frame(word(kTensorBytes) + "and nothing behind it");
  ASSERT_LT(frame.size(), 60u);
  const std::int64_t added = kib_to_refuse(frame, kTensorBytes);
  EXPECT_GE(added, 0);
  EXPECT_LT(added, 16 << 10) << "KiB, for a frame of " << frame.size() << " bytes";
}

TEST(WeightDelta, AWindowThatIsLargerThanTheTensorIsRefused) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 27);
  const std::string content = word(1) + word(0) + "x";
  std::string frame(1024, '\0');
  ZSTD_inBuffer in{.src = content.data(), .size = content.size(), .pos = 0};
  ZSTD_outBuffer out{.dst = frame.data(), .size = frame.size(), .pos = 0};
  // The size of what follows is not known at the start, so the frame claims the whole window.
  ASSERT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush), 0u);
  ASSERT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0u);
  ZSTD_freeCCtx(context);
  frame.resize(out.pos);
  std::vector<std::byte> memory(6);
  const Status status = overwrite().apply(bytes_in(frame), "", memory);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("memory"), std::string::npos) << status.error().message();
}

TEST(WeightDelta, ManyPositionsGoInBatches) {
  constexpr std::size_t kBytes = 530'001;  // More than two batches, and no whole number of them.
  std::mt19937 random(7);
  std::vector<std::byte> memory(kBytes), expected(kBytes);
  std::vector<std::uint32_t> places(kBytes);
  for (std::uint32_t i = 0; i < kBytes; ++i) places[i] = i;
  std::shuffle(places.begin(), places.end(), random);
  std::string body = word(kBytes), values(kBytes, '\0');
  body.append(reinterpret_cast<const char*>(places.data()), places.size() * sizeof places[0]);
  for (std::size_t i = 0; i < kBytes; ++i) {
    values[i] = static_cast<char>(places[i] % 251);
    expected[places[i]] = static_cast<std::byte>(places[i] % 251);
  }
  const std::string checksum = to_hex(digest_of(expected));
  const Status status = overwrite().apply(bytes_in(zstd_frame(body + values)), checksum, memory);
  EXPECT_TRUE(status) << status.error().message();
  EXPECT_EQ(memory, expected);
  EXPECT_FALSE(overwrite().apply(bytes_in(zstd_frame(body + values + "x")), checksum, memory));
  EXPECT_FALSE(overwrite().apply(bytes_in(zstd_frame(body + values.substr(1))), checksum, memory));
}

TEST(WeightDelta, NoChangesAreADelta) {
  std::vector<std::byte> memory(6);
  EXPECT_TRUE(overwrite().apply(bytes_in(zstd_frame(word(0))), to_hex(digest_of(memory)), memory));
  EXPECT_FALSE(overwrite().apply(bytes_in(zstd_frame(word(0) + "x")), to_hex(digest_of(memory)), memory));
}

}  // namespace
}  // namespace freshet::file
