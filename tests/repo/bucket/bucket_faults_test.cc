// SPDX-License-Identifier: Apache-2.0
/// A repository in a bucket whose store, or whose owner, breaks at any call: what was acknowledged is there, whole, and
/// nothing is half there. The same script as that of killed writers of folders (tests/fault/repository_crash_test.cc).

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/digest.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/object_store/memory_object_store.h"
#include "tests/fault/crash_script.h"
#include "tests/support/eventually.h"
#include "tests/support/from_environment.h"

namespace freshet {
namespace {

/// Times of a store that answers at once.
BucketOptions quick_options() {
  BucketOptions options;
  options.check_exclusion = false;
  options.log.look = std::chrono::milliseconds(50);
  options.log.answers = std::chrono::milliseconds(900);
  options.log.challenge = std::chrono::milliseconds(1000);
  options.log.append = std::chrono::seconds(2);
  return options;
}

class BucketFaults : public testing::Test {
 protected:
  BucketFaults() : trace_(__FILE__, __LINE__, format("FRESHET_CRASH_SEED={}", seed_)) {}

  void open() {
    auto backend = open_bucket_backend(store_, quick_options());
    ASSERT_TRUE(backend) << backend.error().message();
    auto opened = ProviderRepository::open(std::move(*backend), {});
    ASSERT_TRUE(opened) << opened.error().message();
    repository_ = std::move(*opened);
  }

  /// After a step that failed: it is done, or not at all. `taken_` goes on.
  void expect_done_or_not() {
    CrashScript script(seed_);
    while (script.step() < taken_) ASSERT_TRUE(script.take(nullptr));
    const std::string unlike_before = unlike(*repository_, script.state());
    if (!unlike_before.empty()) {
      ASSERT_TRUE(script.take(nullptr));
      ASSERT_EQ(unlike(*repository_, script.state()), "") << "nor is it as before: " << unlike_before;
    }
    taken_ = script.step();
    const auto report = repository_->verify(std::nullopt, {});
    ASSERT_TRUE(report) << report.error().message();
    for (const auto& one : report->corrupt) FAIL() << to_string(one.version) << one.record << ": " << one.reason;
  }

  /// The script's next step.
  Status take() {
    CrashScript script(seed_);
    while (script.step() < taken_) static_cast<void>(script.take(nullptr));
    Status done = script.take(repository_.get());
    if (done) taken_ = script.step();
    return done;
  }

  const std::uint64_t seed_ = from_environment("FRESHET_CRASH_SEED", std::random_device()());
  const testing::ScopedTrace trace_;
  std::mt19937_64 random_{seed_};
  std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();
  std::uint64_t taken_ = 0;
  std::unique_ptr<ProviderRepository> repository_;
};

TEST_F(BucketFaults, AStoreThatLosesDelaysAndRepeatsHarmsNothing) {
  ASSERT_NO_FATAL_FAILURE(open());
  std::uint64_t refused = 0;
  for (std::uint64_t round = 0; round < from_environment("FRESHET_CRASHES", 30); ++round) {
    SCOPED_TRACE(format("round {}, step {}", round, taken_));
    store_->set_faults(
        {.seed = seed_ + round, .busy = 60, .lost_request = 60, .lost_answer = 60, .late = 60, .twice = 100});
    const Status done = take();
    store_->set_faults({});
    if (done) continue;
    ++refused;
    EXPECT_EQ(done.error().message().find('\n'), std::string::npos) << done.error().message();
    // As the next put does. Then the log's end is known.
    const Status again = take();
    if (!again) {
      ASSERT_EQ(again.error().code(), Code::already_exists) << again.error().message();
    }
    ASSERT_NO_FATAL_FAILURE(expect_done_or_not());
  }
  EXPECT_GT(refused, 0u) << "the store's faults met nothing";
  store_->do_late_writes();
  repository_.reset();
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_NO_FATAL_FAILURE(expect_done_or_not());
}

/// The first large object is read until its call is interrupted, and somewhat longer. The second one is refused
/// meanwhile.
class LingeringStore final : public ObjectStore {
 public:
  std::atomic<bool> returned{false};
  std::atomic<bool> reads_after_return{false};
  bool is_inside() const { return is_inside_; }

  std::string_view kind() const override { return inner_.kind(); }
  std::string place() const override { return inner_.place(); }
  std::size_t transfers_max() const override { return 2; }
  Creation create(std::string_view key, Bytes bytes, Time deadline, std::optional<std::uint32_t> crc32c) override {
    if (!key.starts_with("objects/")) return inner_.create(key, bytes, deadline, crc32c);
    if (objects_++ != 0) {
      came_true([&] { return is_inside_.load(); });
      return {.outcome = Created::refused, .error = Error(Code::unavailable, "busy")};
    }
    is_inside_ = true;
    came_true([] { return Interruption::is_wanted(); });
    const Time until = deadline_in(std::chrono::milliseconds(300));
    while (!returned && system_clock().now() < until) std::this_thread::yield();
    reads_after_return = returned.load();
    is_inside_ = false;
    return {.outcome = Created::unsettled, .error = Error(Code::cancelled, "interrupted")};
  }
  Status put(std::string_view key, Bytes bytes, Time deadline) override { return inner_.put(key, bytes, deadline); }
  Status remove(std::string_view key, Time deadline) override { return inner_.remove(key, deadline); }
  Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const override {
    return inner_.get(key, bytes_max, deadline);
  }
  Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    return inner_.read(key, offset, out, deadline);
  }
  Result<ObjectHead> head(std::string_view key, Time deadline) const override { return inner_.head(key, deadline); }
  Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                          Time deadline) const override {
    return inner_.list(prefix, after, keys_max, deadline);
  }
  Result<std::int64_t> now_unix_s(Time deadline) const override { return inner_.now_unix_s(deadline); }
  Result<SignedRequest> sign_get(std::string_view key, Duration life) const override {
    return inner_.sign_get(key, life);
  }
  Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                    Duration life) const override {
    return inner_.sign_create(key, bytes, crc32c, life);
  }

 private:
  MemoryObjectStore inner_;
  std::atomic<int> objects_{0};
  std::atomic<bool> is_inside_{false};
};

TEST(BucketWriter, ReadsNothingAfterAWriteThatFailed) {
  const auto store = std::make_shared<LingeringStore>();
  const auto backend = open_bucket_backend(store, quick_options());
  ASSERT_TRUE(backend) << backend.error().message();
  const auto writer = (*backend)->write_blobs();
  ASSERT_TRUE(writer);
  // More parts than objects move at a time: write() meets the refusal before it has begun the last part.
  const std::vector<std::byte> bytes(3 * kDigestPartBytes, std::byte{7});
  const Status written = (*writer)->write("a", bytes);
  store->returned = true;
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), Code::unavailable);
  came_true([&] { return !store->is_inside(); });
  EXPECT_FALSE(store->reads_after_return);
}

TEST_F(BucketFaults, AnOwnerThatEndsAtAnyCallLeavesWholeVersions) {
  ASSERT_NO_FATAL_FAILURE(open());
  ASSERT_TRUE(take());
  std::uint64_t struck = 0;
  for (std::uint64_t crash = 0; crash < from_environment("FRESHET_CRASHES", 3); ++crash) {
    const auto last = std::make_shared<std::atomic<std::int64_t>>(1 + static_cast<std::int64_t>(random_() % 12));
    SCOPED_TRACE(format("crash {}: step {} and on, after {} calls", crash, taken_, last->load()));
    // From that call on, nothing of this owner comes to the store any more.
    store_->set_faults({.seed = seed_ + crash,
                        .delay_max = std::chrono::nanoseconds(1),
                        .on_delay = [store = store_.get(), last](Duration) {
                          if (--*last == 0) store->set_faults({.lost_request = 1000});
                        }});
    Status done;
    for (int step = 0; step < 12 && done; ++step) done = take();
    struck += done ? 0 : 1;
    store_->set_faults({.lost_request = 1000});
    repository_.reset();
    store_->set_faults({});
    ASSERT_NO_FATAL_FAILURE(open());
    ASSERT_NO_FATAL_FAILURE(expect_done_or_not());
  }
  EXPECT_GT(struck, 0u);
}

}  // namespace
}  // namespace freshet
