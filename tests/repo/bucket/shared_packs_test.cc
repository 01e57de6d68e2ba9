// SPDX-License-Identifier: Apache-2.0
#include "repo/bucket/shared_packs.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "repo/bucket/store_caller.h"
#include "repo/object_store/memory_object_store.h"
#include "tests/repo/bucket/gated_store.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet::bucket {
namespace {

class SharedPacksTest : public testing::Test {
 protected:
  void SetUp() override {
    auto log = log::LogStore::open(std::make_shared<ObjectStoreCaller>(store_), {});
    ASSERT_TRUE(log);
    log_ = std::move(*log);
    ASSERT_TRUE(log_->claim(deadline_in(std::chrono::minutes(1))));
    packs_ = std::make_unique<SharedPacks>(*store_, *log_);
  }
  static Pack pack_of(std::size_t number) { return Pack(10 + number, std::byte(number)); }

  void expect_there(const SharedPacks::Where& where, const Pack& pack) const {
    Pack there(pack.size());
    const Status read =
        memory_->read(log::object_key(where.object), where.offset, there, deadline_in(std::chrono::minutes(1)));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(there == pack);
  }
  /// Until so many packs wait together, or did.
  void wait_for(std::size_t packs) {
    came_true([&] {
      if (packs_->waiting() == packs) together_ = true;
      return together_.load();
    });
  }
  std::size_t objects() const {
    return memory_->list(log::kObjectPrefix, "", kListKeysMax, deadline_in(std::chrono::minutes(1)))->objects.size();
  }

  const std::shared_ptr<MemoryObjectStore> memory_ = std::make_shared<MemoryObjectStore>();
  const std::shared_ptr<GatedStore> store_ = std::make_shared<GatedStore>(memory_);
  std::unique_ptr<log::LogStore> log_;
  std::unique_ptr<SharedPacks> packs_;
  std::atomic<bool> together_{false};
};

TEST_F(SharedPacksTest, PacksThatWaitTogetherShareAnObject) {
  constexpr std::size_t kPacks = 8;
  std::atomic<std::size_t> begun{0};
  store_->before = [&](GatedStore::Call call, std::string_view key) {
    if (call != GatedStore::Call::create || !key.starts_with(log::kObjectPrefix) || ++begun > 2) return;
    wait_for(kPacks - 2);
  };
  std::vector<Result<SharedPacks::Where>> where(kPacks, fail(Code::unavailable, "not yet"));
  {
    std::vector<std::jthread> writers;
    for (std::size_t i = 0; i < kPacks; ++i) {
      writers.emplace_back([&, i] { where[i] = packs_->upload(pack_of(i)); });
      if (i < 2) came_true([&] { return begun == i + 1; });  // Each of these leads an upload of its own.
    }
  }
  EXPECT_EQ(objects(), 3u);
  for (std::size_t i = 0; i < kPacks; ++i) {
    ASSERT_TRUE(where[i]) << where[i].error().message();
    expect_there(*where[i], pack_of(i));
  }
}

/// Whichever of two packs' threads uploads both is interrupted meanwhile: the other pack comes all the same.
TEST_F(SharedPacksTest, AThreadThatMustEndEndsNoOtherWriters) {
  std::map<std::thread::id, std::stop_source> stops;
  Mutex stops_mutex;
  std::atomic<std::size_t> begun{0};
  store_->before = [&](GatedStore::Call call, std::string_view key) {
    if (call != GatedStore::Call::create || !key.starts_with(log::kObjectPrefix)) return;
    const std::size_t number = ++begun;
    if (number <= 2) wait_for(2);
    if (number != 3) return;
    {
      const MutexLock lock(stops_mutex);
      stops[std::this_thread::get_id()].request_stop();
    }
    came_true([] { return Interruption::is_wanted(); });
  };
  const auto upload = [&](std::size_t number) {
    std::stop_token token;
    {
      const MutexLock lock(stops_mutex);
      token = stops[std::this_thread::get_id()].get_token();
    }
    const StopInterrupts interrupts(token);
    return packs_->upload(pack_of(number));
  };
  std::vector<Result<SharedPacks::Where>> where(4, fail(Code::unavailable, "not yet"));
  {
    std::vector<std::jthread> writers;
    for (std::size_t i = 0; i < 2; ++i) {
      writers.emplace_back([&, i] { where[i] = packs_->upload(pack_of(i)); });
      came_true([&] { return begun == i + 1; });
    }
    for (std::size_t i = 2; i < 4; ++i) writers.emplace_back([&, i] { where[i] = upload(i); });
  }
  std::size_t cancelled = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    if (where[i]) {
      expect_there(*where[i], pack_of(i));
    } else {
      EXPECT_EQ(where[i].error().code(), Code::cancelled);
      ++cancelled;
    }
  }
  EXPECT_EQ(cancelled, 1u);
}

TEST_F(SharedPacksTest, AnUploadThatFailsIsToldToAllOfIt) {
  memory_->set_faults({.busy = 1000});
  EXPECT_TRUE(is_refused(packs_->upload(pack_of(1)), Code::unavailable));
  memory_->set_faults({});
  EXPECT_TRUE(packs_->upload(pack_of(1)));
}

}  // namespace
}  // namespace freshet::bucket
