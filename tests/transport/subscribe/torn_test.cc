// SPDX-License-Identifier: Apache-2.0
/// Readers look at whole versions while hundreds of swaps go on: never a mix of two, and never bytes that changed under
/// them.

#include <atomic>
#include <unordered_map>

#include "core/base/mutex.h"
#include "tests/transport/model_fixture.h"

namespace freshet {
namespace {

using namespace freshet::test;

constexpr int kSwaps = 300;
constexpr int kReaders = 3;
constexpr std::size_t kTornTensors = 6;

class Torn : public StreamTest {};

/// What the trainer put into each version, computed from its own memory.
class Ledger {
 public:
  void write(VersionNumber version, const StampedModel& model) {
    std::vector<Digest> digests;
    for (const TensorView& view : model.views()) digests.push_back(digest_of(view.data));
    const MutexLock lock(mutex_);
    versions_[version] = std::move(digests);
  }
  bool agrees(const Snapshot& snapshot) const {
    std::vector<Digest> digests;
    for (std::uint32_t t = 0; t < kTornTensors; ++t) digests.push_back(digest_of(snapshot.bytes(t)));
    const MutexLock lock(mutex_);
    const auto at = versions_.find(snapshot.version());
    return at != versions_.end() && at->second == digests;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_map<VersionNumber, std::vector<Digest>> versions_;
};

TEST_F(Torn, NoReaderEverSeesAMix) {
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  StampedModel model(kTornTensors, 4096);
  Ledger ledger;
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> looked{0};
  std::atomic<std::uint64_t> torn{0};
  std::atomic<std::uint64_t> backwards{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < kReaders; ++reader) {
    readers.emplace_back([&, reader] {
      VersionNumber last = 0;
      while (!done) {
        const Snapshot snapshot = subscriber->snapshot();
        if (!snapshot) continue;
        if (snapshot.version() < last) ++backwards;
        last = snapshot.version();
        // One of them looks twice, with time for swaps in between.
        for (int look = 0; look <= (reader == 0 ? 1 : 0); ++look) {
          if (!ledger.agrees(snapshot)) ++torn;
        }
        ++looked;
      }
    });
  }
  for (int swap = 1; swap <= kSwaps; ++swap) {
    std::vector<std::uint32_t> changed;
    for (std::uint32_t t = 0; t < kTornTensors; ++t) {
      if ((static_cast<std::uint32_t>(swap) >> t & 1U) == 0) continue;
      model.stamp(t, static_cast<std::uint64_t>(swap));
      changed.push_back(t);
    }
    // Written down before anybody can see it.
    ledger.write(static_cast<VersionNumber>(swap), model);
    const auto receipt = publisher->publish(model.views(), {.changed = Changed::only(changed)});
    ASSERT_TRUE(receipt) << receipt.error().message();
    ASSERT_EQ(receipt->version, static_cast<VersionNumber>(swap));
    ASSERT_TRUE(subscriber->wait_for(receipt->version, kPatience));
  }
  const std::uint64_t before = looked;
  ASSERT_TRUE(eventually([&] { return looked > before; }));
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(torn, 0U);
  EXPECT_EQ(backwards, 0U);
  EXPECT_GE(subscriber->status().updates, 200U);
  EXPECT_GT(looked, 0U);
}

TEST_F(Torn, ATornReadIsFoundWhenOneIsMade) {
  StampedModel model(kTornTensors, 64);
  auto publisher = open_publisher(publisher_options());
  auto subscriber = open_subscriber(subscriber_options());
  Ledger ledger;
  ledger.write(1, model);
  ASSERT_TRUE(subscriber->wait_for(publish(*publisher, model), kPatience));
  EXPECT_TRUE(ledger.agrees(subscriber->snapshot()));
  // The trainer's record of one tensor is another version's.
  model.stamp(5, 1);
  ledger.write(1, model);
  EXPECT_FALSE(ledger.agrees(subscriber->snapshot()));
}

}  // namespace
}  // namespace freshet
