// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/pins.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "core/base/wake.h"
#include "tests/support/this_build.h"
#include "transport/subscribe/served_version.h"

namespace freshet::detail {
namespace {

class Pins : public ::testing::Test {
 protected:
  Pins() : wake_(std::move(*Wake::open())) {}
  bool was_woken() {
    std::uint64_t count = 0;
    return ::read(wake_.descriptor(), &count, sizeof count) == sizeof count;
  }
  Wake wake_;
};

TEST_F(Pins, NameWhatIsCurrent) {
  const PinTable::Owner pins = PinTable::make(2, wake_.descriptor());
  const ServedVersion one;
  const ServedVersion two;
  EXPECT_EQ(pins->pin_current().version, nullptr);
  pins->set_current(&one);
  const auto first = pins->pin_current();
  EXPECT_EQ(first.version, &one);
  pins->set_current(&two);
  const auto second = pins->pin_current();
  EXPECT_EQ(second.version, &two);
  EXPECT_EQ(pins->pin_current().slot, nullptr) << "there were two slots";
  EXPECT_TRUE(pins->names(&one));
  EXPECT_TRUE(pins->names(&two));
  EXPECT_FALSE(was_woken());
  pins->unpin(*first.slot);
  EXPECT_FALSE(pins->names(&one));
  EXPECT_TRUE(was_woken()) << "the last reader of a retired version left";
  pins->unpin(*second.slot);
}

TEST_F(Pins, LeavingTheCurrentVersionWakesNobody) {
  const PinTable::Owner pins = PinTable::make(4, wake_.descriptor());
  const ServedVersion one;
  pins->set_current(&one);
  pins->unpin(*pins->pin_current().slot);
  EXPECT_FALSE(was_woken());
}

TEST_F(Pins, OneWakeUpUntilItIsAcknowledged) {
  const PinTable::Owner pins = PinTable::make(4, wake_.descriptor());
  const ServedVersion one;
  const ServedVersion two;
  pins->set_current(&one);
  const auto first = pins->pin_current();
  const auto second = pins->pin_current();
  const auto third = pins->pin_current();
  pins->set_current(&two);
  pins->unpin(*first.slot);
  EXPECT_TRUE(was_woken());
  pins->unpin(*second.slot);
  EXPECT_FALSE(was_woken());
  pins->acknowledge_wake();
  pins->unpin(*third.slot);
  EXPECT_TRUE(was_woken());
}

/// A writer that ends versions as soon as no slot names them, and readers that notice when theirs was ended.
TEST_F(Pins, ANamedVersionIsNeverEnded) {
  constexpr std::size_t kVersions = 8;
  // A sanitizer sees an access that is not ordered the first times that it happens; the plain build has the many swaps.
  const int swaps = test::under_sanitizer() ? 500'000 : 5'000'000;
  std::array<ServedVersion, kVersions> versions;
  std::array<std::atomic<bool>, kVersions> ended{};
  for (auto& flag : ended) flag = true;
  const PinTable::Owner pins = PinTable::make(16, wake_.descriptor());
  ended[0] = false;
  pins->set_current(&versions[0]);
  std::atomic<bool> done{false};
  std::atomic<int> violations{0};
  std::atomic<std::uint64_t> pinned{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!done) {
        const auto pin = pins->pin_current();
        if (pin.slot == nullptr) continue;
        const auto index = static_cast<std::size_t>(pin.version - versions.data());
        for (int look = 0; look < 20; ++look) {
          if (ended[index]) ++violations;
        }
        pins->unpin(*pin.slot);
        ++pinned;
      }
    });
  }
  std::size_t current = 0;
  for (int swap = 0; swap < swaps || pinned < 1000; ++swap) {
    std::size_t next = (current + 1) % kVersions;
    // Those that were retired earlier and are not named any more end now; only ended ones may be used again.
    for (std::size_t i = 0; i < kVersions; ++i) {
      if (i != current && !ended[i] && !pins->names(&versions[i])) ended[i] = true;
    }
    while (!ended[next] || next == current) {
      next = (next + 1) % kVersions;
      if (next == current && !pins->names(&versions[(current + 1) % kVersions]))
        ended[(current + 1) % kVersions] = true;
    }
    ended[next] = false;
    pins->set_current(&versions[next]);
    current = next;
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(violations, 0);
}

/// A version, and whether it has ended.
struct Watched {
  std::unique_ptr<ServedVersion> version = std::make_unique<ServedVersion>();
  std::weak_ptr<const Manifest> manifest;
  Watched() {
    version->manifest = std::make_shared<const Manifest>();
    manifest = version->manifest;
  }
  bool has_ended() const { return manifest.expired(); }
};

TEST_F(Pins, WhatIsReadOutlivesTheWriterUntilItsLastReaderLeaves) {
  PinTable::Owner pins = PinTable::make(4, wake_.descriptor());
  Watched one;
  Watched two;
  Watched three;
  pins->set_current(one.version.get());
  const auto of_one = pins->pin_current();
  const auto of_one_too = pins->pin_current();
  pins->set_current(two.version.get());
  const auto of_two = pins->pin_current();
  PinTable* const table = pins.get();
  std::vector<std::unique_ptr<ServedVersion>> versions;
  for (Watched* watched : {&one, &two, &three}) versions.push_back(std::move(watched->version));
  PinTable::abandon(std::move(pins), std::move(versions));
  EXPECT_TRUE(three.has_ended()) << "nobody reads it";
  table->unpin(*of_one.slot);
  EXPECT_FALSE(one.has_ended());
  table->unpin(*of_two.slot);
  EXPECT_TRUE(two.has_ended());
  EXPECT_FALSE(one.has_ended());
  table->unpin(*of_one_too.slot);  // And the table with it.
  EXPECT_TRUE(one.has_ended());
  EXPECT_FALSE(was_woken()) << "there is no writer to be woken";
}

/// Readers leave in every order with the writer's end; a sanitizer sees who touches what has gone.
TEST_F(Pins, ReadersMayLeaveWhileTheWriterEnds) {
  constexpr int kRounds = 300;
  constexpr int kReaders = 3;
  for (int round = 0; round < kRounds; ++round) {
    auto wake = std::make_unique<Wake>(std::move(*Wake::open()));
    PinTable::Owner pins = PinTable::make(8, wake->descriptor());
    Watched older;
    Watched newer;
    pins->set_current(older.version.get());
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> readers;
    for (int reader = 0; reader < kReaders; ++reader) {
      PinTable::Pin pin = pins->pin_current();
      if (reader == 0) pins->set_current(newer.version.get());
      readers.emplace_back([&ready, &go, pin] {
        ++ready;
        while (!go) std::this_thread::yield();  // No spinning: there may be fewer processors than readers.
        pin.slot->table->unpin(*pin.slot);
      });
    }
    while (ready < kReaders) std::this_thread::yield();
    std::vector<std::unique_ptr<ServedVersion>> versions;
    versions.push_back(std::move(older.version));
    versions.push_back(std::move(newer.version));
    go = true;
    PinTable::abandon(std::move(pins), std::move(versions));
    wake.reset();
    for (std::thread& reader : readers) reader.join();
    ASSERT_TRUE(older.has_ended() && newer.has_ended()) << "round " << round;
  }
}

}  // namespace
}  // namespace freshet::detail
