// SPDX-License-Identifier: Apache-2.0
/// Memory that was touched beforehand, and the backend that keeps blobs in it.

#include "repo/backend/touched_memory.h"

#include <gtest/gtest.h>

#include "tests/repo/world.h"

namespace freshet {
namespace {

constexpr std::uint64_t kRoom = 1 << 20;

TEST(TouchedMemoryTest, GivesOutWhatItHasAndTheHeapTheRest) {
  const auto touched = TouchedMemory::create(kRoom).value();
  const auto first = BlobMemory::take(touched, kRoom / 2).value();
  const auto second = BlobMemory::take(touched, kRoom / 2).value();
  const std::byte* const place = second->bytes().data();
  EXPECT_EQ(first->bytes().data() + kRoom / 2, place);
  const auto third = BlobMemory::take(touched, kRoom / 2).value();
  EXPECT_EQ(third->bytes().size(), kRoom / 2);
  EXPECT_NE(third->bytes().data(), place);
  std::fill(third->memory().begin(), third->memory().end(), std::byte{7});
}

TEST(TouchedMemoryTest, WhatComesBackIsGivenOutAgain) {
  const auto touched = TouchedMemory::create(kRoom).value();
  const std::byte* place = nullptr;
  for (int round = 0; round < 5; ++round) {
    const auto blob = BlobMemory::take(touched, kRoom).value();
    if (round > 0) {
      EXPECT_EQ(blob->bytes().data(), place);
    }
    place = blob->bytes().data();
  }
}

// A reader that holds a blob keeps its memory, also when the backend is gone.
TEST(TouchedMemoryTest, OutlivesWhoeverGaveItOut) {
  auto touched = TouchedMemory::create(kRoom).value();
  const auto blob = BlobMemory::take(touched, 1000).value();
  touched.reset();
  std::fill(blob->memory().begin(), blob->memory().end(), std::byte{1});
}

TEST(TouchedMemoryTest, ARepositoryLivesInIt) {
  const auto repository = open_or_die(make_memory_backend({.touched_bytes = kRoom}).value());
  std::mt19937_64 random(1);
  const auto architecture = test_architecture({100, 300'000, 400'001, 0});
  std::vector<TestVersion> versions;
  for (std::uint64_t i = 1; i <= 4; ++i) {  // More than there is touched room for.
    versions.push_back(
        make_version("net", test_id(i), architecture, i == 1 ? nullptr : &versions.back(), {0, 1}, random));
    ASSERT_TRUE(put(*repository, versions.back()));
  }
  for (std::uint64_t i = 1; i <= 4; ++i) {
    EXPECT_EQ(read_all(*repository, {.model = "net", .number = i}).value(), versions[i - 1].bytes);
  }
}

}  // namespace
}  // namespace freshet
