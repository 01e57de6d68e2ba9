// SPDX-License-Identifier: Apache-2.0
#include "transport/subscribe/pins.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "core/base/wake.h"
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
  PinTable pins(2, wake_.descriptor());
  const ServedVersion one;
  const ServedVersion two;
  EXPECT_EQ(pins.pin_current().version, nullptr);
  pins.set_current(&one);
  const auto first = pins.pin_current();
  EXPECT_EQ(first.version, &one);
  pins.set_current(&two);
  EXPECT_EQ(pins.pin_current().version, &two);
  EXPECT_EQ(pins.pin_current().slot, nullptr) << "there were two slots";
  EXPECT_TRUE(pins.names(&one));
  EXPECT_TRUE(pins.names(&two));
  EXPECT_FALSE(was_woken());
  pins.unpin(*first.slot);
  EXPECT_FALSE(pins.names(&one));
  EXPECT_TRUE(was_woken()) << "the last reader of a retired version left";
}

TEST_F(Pins, LeavingTheCurrentVersionWakesNobody) {
  PinTable pins(4, wake_.descriptor());
  const ServedVersion one;
  pins.set_current(&one);
  pins.unpin(*pins.pin_current().slot);
  EXPECT_FALSE(was_woken());
}

TEST_F(Pins, OneWakeUpUntilItIsAcknowledged) {
  PinTable pins(4, wake_.descriptor());
  const ServedVersion one;
  const ServedVersion two;
  pins.set_current(&one);
  const auto first = pins.pin_current();
  const auto second = pins.pin_current();
  const auto third = pins.pin_current();
  pins.set_current(&two);
  pins.unpin(*first.slot);
  EXPECT_TRUE(was_woken());
  pins.unpin(*second.slot);
  EXPECT_FALSE(was_woken());
  pins.acknowledge_wake();
  pins.unpin(*third.slot);
  EXPECT_TRUE(was_woken());
}

/// A writer that ends versions as soon as no slot names them, and readers that notice when theirs was ended.
TEST_F(Pins, ANamedVersionIsNeverEnded) {
  constexpr std::size_t kVersions = 8;
  constexpr int kSwaps = 5000000;
  std::array<ServedVersion, kVersions> versions;
  std::array<std::atomic<bool>, kVersions> ended{};
  for (auto& flag : ended) flag = true;
  PinTable pins(16, wake_.descriptor());
  ended[0] = false;
  pins.set_current(&versions[0]);
  std::atomic<bool> done{false};
  std::atomic<int> violations{0};
  std::atomic<std::uint64_t> pinned{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      while (!done) {
        const auto pin = pins.pin_current();
        if (pin.slot == nullptr) continue;
        const auto index = static_cast<std::size_t>(pin.version - versions.data());
        for (int look = 0; look < 20; ++look) {
          if (ended[index]) ++violations;
        }
        pins.unpin(*pin.slot);
        ++pinned;
      }
    });
  }
  std::size_t current = 0;
  for (int swap = 0; swap < kSwaps || pinned < 1000; ++swap) {
    std::size_t next = (current + 1) % kVersions;
    // Those that were retired earlier and are not named any more end now; only ended ones may be used again.
    for (std::size_t i = 0; i < kVersions; ++i) {
      if (i != current && !ended[i] && !pins.names(&versions[i])) ended[i] = true;
    }
    while (!ended[next] || next == current) {
      next = (next + 1) % kVersions;
      if (next == current && !pins.names(&versions[(current + 1) % kVersions])) ended[(current + 1) % kVersions] = true;
    }
    ended[next] = false;
    pins.set_current(&versions[next]);
    current = next;
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(violations, 0);
}

}  // namespace
}  // namespace freshet::detail
