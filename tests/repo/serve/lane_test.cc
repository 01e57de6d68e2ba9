// SPDX-License-Identifier: Apache-2.0
/// Memory that two processes share, and what comes through it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/base/file_descriptor.h"
#include "repo/serve/server/lane_desk.h"
#include "tests/repo/world.h"
#include "tests/support/temporary_folder.h"

namespace freshet::rpc {
namespace {

constexpr std::uint64_t kBytes = 64 << 10;
constexpr protocol::SessionId kMyLane = 11;
constexpr protocol::SessionId kOthersLane = 12;

TEST(LaneMemory, WhatItsMakerWritesIsReadByWhoOpensIt) {
  const auto made = LaneMemory::create(kBytes);
  ASSERT_TRUE(made) << made.error().message();
  const auto opened = LaneMemory::open((*made)->place());
  ASSERT_TRUE(opened) << opened.error().message();
  ASSERT_EQ((*opened)->memory().size(), kBytes);
  EXPECT_NE((*opened)->memory().data(), (*made)->memory().data());
  std::mt19937_64 random(1);
  const std::vector<std::byte> bytes = random_bytes(kBytes, random);
  std::copy(bytes.begin(), bytes.end(), (*made)->memory().begin());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), (*opened)->memory().begin()));
}

TEST(LaneMemory, CannotBeTakenFromUnderWhoReadsIt) {
  const auto made = LaneMemory::create(kBytes);
  ASSERT_TRUE(made) << made.error().message();
  const auto opened = LaneMemory::open((*made)->place());
  ASSERT_TRUE(opened) << opened.error().message();
  const int descriptor = (*made)->place().descriptor;
  EXPECT_NE(::ftruncate(descriptor, 0), 0);
  EXPECT_NE(::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(::madvise((*made)->memory().data(), 4096, MADV_REMOVE), 0);
  EXPECT_EQ((*opened)->memory().back(), std::byte{0});
}

TEST(LaneMemory, NothingElseIsTakenForOne) {
  const auto made = LaneMemory::create(kBytes);
  ASSERT_TRUE(made) << made.error().message();
  const LanePlace good = (*made)->place();
  const auto refused = [](LanePlace place) {
    const auto opened = LaneMemory::open(place);
    return opened ? std::optional<Code>() : std::optional<Code>(opened.error().code());
  };
  LanePlace place = good;
  place.mark[1] ^= 1;
  EXPECT_EQ(refused(place), Code::unavailable);
  place = good;
  place.bytes = kBytes / 2;
  EXPECT_EQ(refused(place), Code::corrupt);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{5000}, kLaneBytesMax + 4096, ~std::uint64_t{0}}) {
    place.bytes = bytes;
    EXPECT_EQ(refused(place), Code::invalid_argument) << bytes;
  }
  place = good;
  for (const std::int32_t pid : {0, -1, 0x7fffffff}) {
    place.pid = pid;
    EXPECT_NE(refused(place), std::nullopt) << pid;
  }
  place = good;
  place.descriptor = -1;
  EXPECT_EQ(refused(place), Code::corrupt);

  // Of the right length, but of a kind that can change: a file, a pipe, memory that is not sealed.
  const TemporaryFolder folder;
  const std::uint64_t length = kBytes + (64 << 10);
  const FileDescriptor file(::open((folder / "file").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(length)), 0);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const FileDescriptor out(ends[0]);
  const FileDescriptor in(ends[1]);
  const FileDescriptor memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), static_cast<off_t>(length)), 0);
  for (const int descriptor : {file.get(), out.get(), memory.get()}) {
    place.descriptor = descriptor;
    EXPECT_NE(refused(place), std::nullopt) << descriptor;
  }
}

// Whoever closes a descriptor of a file loses the locks that his process has on it.
TEST(LaneMemory, WhoOffersAFileTakesNobodysLockOnIt) {
  const TemporaryFolder folder;
  const FileDescriptor file(::open((folder / "LOCK").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(kBytes + (64 << 10))), 0);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(file.get(), F_SETLK, &lock), 0);
  const LanePlace place{.pid = ::getpid(), .descriptor = file.get(), .bytes = kBytes, .mark = {}};
  EXPECT_FALSE(LaneMemory::open(place));
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    struct flock seen {};
    seen.l_type = F_WRLCK;
    seen.l_whence = SEEK_SET;
    const bool is_locked = ::fcntl(file.get(), F_GETLK, &seen) == 0 && seen.l_type == F_WRLCK;
    ::_exit(is_locked ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0) << "the lock is gone";
}

TEST(LaneStream, HandsOutWhatComesWhateverItsLengths) {
  std::mt19937_64 random(20261122);
  for (const bool in_place : {false, true}) {
    std::vector<std::byte> ring(4096);
    std::vector<std::uint64_t> lengths;
    std::uint64_t total = 0;
    for (int i = 0; i < 400; ++i) {
      lengths.push_back(i % 7 == 0 ? 0 : i % 5 == 0 ? random() % 20'000 : random() % 900);
      total += lengths.back();
    }
    const std::vector<std::byte> bytes = random_bytes(total, random);
    LaneStream stream(ring, nullptr);
    if (in_place) stream.hand_out_in_place();
    Mutex mutex;
    CondVar done;
    std::uint64_t room = ring.size();
    bool is_over = false;
    stream.on_done([&](std::uint64_t count) {
      const MutexLock lock(mutex);
      room += count;
      done.notify_all();
    });
    std::jthread client([&, seed = random()] {
      std::mt19937_64 own(seed);
      for (std::uint64_t written = 0; written < total;) {
        std::uint64_t count = 0;
        {
          const MutexLock lock(mutex);
          while (room == 0 && !is_over) done.wait(mutex);
          if (is_over) return;
          count = std::min({room, total - written, 1 + own() % 1500});
          room -= count;
        }
        for (std::uint64_t i = 0; i < count; ++i) ring[(written + i) % ring.size()] = bytes[written + i];
        written += count;
        stream.push(count);
      }
    });
    // Whatever fails here, the client ends.
    const std::shared_ptr<void> end(nullptr, [&](void*) {
      const MutexLock lock(mutex);
      is_over = true;
      done.notify_all();
    });
    std::uint64_t from = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      // Some that nobody wants any more are passed over.
      if (i % 11 != 3) {
        const auto taken = stream.take(from, lengths[i]);
        ASSERT_TRUE(taken) << taken.error().message();
        ASSERT_EQ(taken->size(), lengths[i]);
        ASSERT_TRUE(std::equal(taken->begin(), taken->end(), bytes.begin() + static_cast<std::ptrdiff_t>(from)));
      }
      from += lengths[i];
    }
    ASSERT_TRUE(stream.take(total, 0));
    EXPECT_EQ(stream.take(0, 1).error().code(), Code::failed_precondition);
  }
}

TEST(LaneStream, OneThatIsCutEndsWhoWaitsAndKeepsWhatCame) {
  std::vector<std::byte> ring(4096, std::byte{7});
  LaneStream stream(ring, nullptr);
  stream.push(100);
  std::jthread cutter([&] { stream.cut(); });
  EXPECT_EQ(stream.take(0, 101).error().code(), Code::unavailable);
  cutter.join();
  LaneStream another(ring, nullptr);
  another.push(100);
  another.cut();
  EXPECT_TRUE(another.take(0, 100));
  EXPECT_EQ(another.take(100, 1).error().code(), Code::unavailable);
}

class LaneDeskTest : public testing::Test {
 protected:
  LaneDeskTest() {
    desk_.begin_session(kMyLane);
    desk_.begin_session(kOthersLane);
  }
  LaneDesk desk_{true, {.bytes_max = 4 * kBytes, .lanes_per_session_max = 3}};
  std::shared_ptr<LaneMemory> memory_ = LaneMemory::create(kBytes).value();
};

TEST_F(LaneDeskTest, ALaneIsOfOneSessionAndOnePutAtATime) {
  const auto lane = desk_.take_in(kMyLane, memory_->place());
  ASSERT_TRUE(lane) << lane.error().message();
  EXPECT_EQ(desk_.begin_put(kOthersLane, *lane), nullptr);
  EXPECT_EQ(desk_.begin_put(kMyLane, *lane + 1), nullptr);
  auto stream = desk_.begin_put(kMyLane, *lane);
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(desk_.begin_put(kMyLane, *lane), nullptr);
  stream.reset();
  EXPECT_NE(desk_.begin_put(kMyLane, *lane), nullptr);
  EXPECT_FALSE(desk_.made(kMyLane, *lane)) << "nobody writes into what a client made";
  const auto made = desk_.make(kMyLane, kBytes);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(desk_.begin_put(kMyLane, made->lane), nullptr);
  EXPECT_EQ(desk_.made(kOthersLane, made->lane).error().code(), Code::not_found);
  EXPECT_TRUE(desk_.made(kMyLane, made->lane));
}

TEST_F(LaneDeskTest, LanesAreCountedAndGoWithTheirSession) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(desk_.make(kMyLane, kBytes));
  EXPECT_EQ(desk_.make(kMyLane, kBytes).error().code(), Code::out_of_space) << "as many as one session may have";
  EXPECT_EQ(desk_.take_in(kMyLane, memory_->place()).error().code(), Code::out_of_space);
  EXPECT_EQ(desk_.make(kOthersLane, 2 * kBytes).error().code(), Code::out_of_space) << "as much as all may have";
  EXPECT_TRUE(desk_.take_in(kOthersLane, memory_->place()));
  EXPECT_EQ(desk_.bytes(), 4 * kBytes);
  desk_.end_session(kMyLane);
  EXPECT_EQ(desk_.bytes(), kBytes);
  EXPECT_EQ(desk_.make(kMyLane, kBytes).error().code(), Code::unavailable);
  LanePlace nowhere = memory_->place();
  nowhere.mark[0] ^= 1;
  EXPECT_FALSE(desk_.take_in(kOthersLane, nowhere));
  EXPECT_EQ(desk_.make(kOthersLane, kLaneBytesMax + 4096).error().code(), Code::invalid_argument);
  EXPECT_EQ(desk_.bytes(), kBytes) << "what came to nothing is not counted";
  LaneDesk without(false);
  without.begin_session(kMyLane);
  EXPECT_EQ(without.make(kMyLane, kBytes).error().code(), Code::unsupported);
}

TEST_F(LaneDeskTest, ClosingEndsThePutsThatWait) {
  const LaneId lane = desk_.take_in(kMyLane, memory_->place()).value();
  const auto stream = desk_.begin_put(kMyLane, lane);
  std::jthread closer([&] { desk_.close(); });
  EXPECT_EQ(stream->take(0, 1).error().code(), Code::unavailable);
  closer.join();
  EXPECT_EQ(desk_.begin_put(kMyLane, lane), nullptr);
}

}  // namespace
}  // namespace freshet::rpc
