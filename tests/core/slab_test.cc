// SPDX-License-Identifier: Apache-2.0
#include "core/arena/slab.h"
#include "tests/support/this_build.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace freshet {
namespace {

Slab make_slab(std::uint64_t bytes) {
  auto slab = Slab::create("slab-test", {.bytes = bytes});
  EXPECT_TRUE(slab) << slab.error().message();
  return std::move(*slab);
}

long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(Slab, ReachesAReaderThroughItsDescriptor) {
  Slab slab = make_slab(10000);
  EXPECT_EQ(slab.bytes() % 4096, 0u);
  EXPECT_GE(slab.bytes(), 10000u);
  auto reader = Slab::adopt(::dup(slab.descriptor()), slab.bytes());
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_FALSE(reader->writable());
  std::memset(slab.memory().data(), 0x5A, slab.bytes());
  EXPECT_EQ(std::memcmp(std::as_const(*reader).memory().data(), slab.memory().data(), slab.bytes()), 0);
}

TEST(Slab, FaultsNoMoreAfterItWasMade) {
  if (test::under_sanitizer()) GTEST_SKIP() << "a sanitizer's shadow memory faults too";
  Slab slab = make_slab(std::uint64_t{8} << 20);
  auto reader = Slab::adopt(::dup(slab.descriptor()), slab.bytes());
  ASSERT_TRUE(reader);
  const long before = minor_faults();
  std::memset(slab.memory().data(), 1, slab.bytes());
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < slab.bytes(); i += 4096) {
    sum += static_cast<std::uint64_t>(std::as_const(*reader).memory()[i]);
  }
  EXPECT_EQ(sum, slab.bytes() / 4096);
  EXPECT_LE(minor_faults() - before, 4) << "2048 pages are mapped twice";
}

TEST(Slab, CanBeWrittenByNobodyElse) {
  Slab slab = make_slab(8192);
  const int received = ::dup(slab.descriptor());
  EXPECT_EQ(::mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, received, 0), MAP_FAILED);
  void* const readable = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, received, 0);
  ASSERT_NE(readable, MAP_FAILED);
  EXPECT_NE(::mprotect(readable, 8192, PROT_READ | PROT_WRITE), 0);
  ::munmap(readable, 8192);
  EXPECT_NE(::ftruncate(received, 4096), 0);
  EXPECT_NE(::ftruncate(received, 16384), 0);
  EXPECT_EQ(::pwrite(received, "x", 1, 0), -1);
  EXPECT_NE(::fallocate(received, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(::fcntl(received, F_ADD_SEALS, F_SEAL_WRITE), 0);
  ::close(received);
}

TEST(Slab, AdoptsOnlySealedMemoryOfTheSizePromised) {
  Slab slab = make_slab(8192);
  EXPECT_EQ(Slab::adopt(::dup(slab.descriptor()), 4096).error().code(), Code::corrupt);
  EXPECT_EQ(Slab::adopt(::dup(slab.descriptor()), 12288).error().code(), Code::corrupt);
  EXPECT_EQ(Slab::adopt(::dup(slab.descriptor()), 0).error().code(), Code::corrupt);
  EXPECT_EQ(Slab::adopt(::dup(slab.descriptor()), ~std::uint64_t{0}).error().code(), Code::corrupt);
  EXPECT_EQ(Slab::adopt(-1, 8192).error().code(), Code::corrupt);

  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(unsealed, 8192), 0);
  EXPECT_EQ(Slab::adopt(::dup(unsealed), 8192).error().code(), Code::corrupt);
  const int all_but_one = F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  ASSERT_EQ(::fcntl(unsealed, F_ADD_SEALS, all_but_one), 0);
  EXPECT_EQ(Slab::adopt(unsealed, 8192).error().code(), Code::corrupt);

  const int holey = ::memfd_create("holey", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(holey, 8192), 0);
  ASSERT_EQ(::fcntl(holey, F_ADD_SEALS, all_but_one | F_SEAL_SHRINK), 0);
  EXPECT_EQ(Slab::adopt(holey, 8192).error().code(), Code::corrupt);

  char path[] = "/tmp/freshet-slab-XXXXXX";
  const int file = ::mkstemp(path);
  ASSERT_GE(file, 0);
  ::unlink(path);
  ASSERT_EQ(::ftruncate(file, 8192), 0);
  EXPECT_EQ(Slab::adopt(file, 8192).error().code(), Code::corrupt);
}

TEST(Slab, AdoptTakesTheDescriptorAlsoWhenItRefuses) {
  const int unsealed = ::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_FALSE(Slab::adopt(unsealed, 4096));
  EXPECT_EQ(::fcntl(unsealed, F_GETFD), -1);
}

TEST(Slab, SaysWhenTheMemoryIsNotThere) {
  EXPECT_EQ(Slab::create("too-large", {.bytes = std::uint64_t{1} << 45}).error().code(), Code::out_of_space);
  EXPECT_EQ(Slab::create("nothing", {.bytes = 0}).error().code(), Code::invalid_argument);
  EXPECT_EQ(Slab::create("absurd", {.bytes = ~std::uint64_t{0}}).error().code(), Code::invalid_argument);
}

TEST(Slab, HugePagesFallBackToOrdinaryOnes) {
  auto slab = Slab::create("huge", {.bytes = 5000000, .huge_pages = true});
  ASSERT_TRUE(slab) << slab.error().message();
  EXPECT_GE(slab->bytes(), 5000000u);
  slab->memory()[4999999] = std::byte{7};
  auto reader = Slab::adopt(::dup(slab->descriptor()), slab->bytes());
  ASSERT_TRUE(reader) << reader.error().message();
  EXPECT_EQ(std::as_const(*reader).memory()[4999999], std::byte{7});
}

}  // namespace
}  // namespace freshet
