// SPDX-License-Identifier: Apache-2.0
#include "repo/log/log_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "tests/support/refused.h"

namespace freshet::log {
namespace {

/// The objects of a store in this process.
struct StoredObjects {
  Mutex mutex;
  std::map<std::string, std::string> objects FRESHET_GUARDED_BY(mutex);
};

/// One member's way to a store, which can be cut.
class WayToStore final : public StoreCaller {
 public:
  explicit WayToStore(std::shared_ptr<StoredObjects> store) : store_(std::move(store)) {}

  Answer run(const Call& call) override {
    const bool creates = std::holds_alternative<call::Create>(call.what);
    Answer answer;
    answer.kind = creates ? Answer::Kind::unsettled : Answer::Kind::failed;
    answer.error = Error(Code::unavailable, "the way to the store is cut");
    if (cut_) return answer;
    const MutexLock lock(store_->mutex);
    auto& objects = store_->objects;
    answer.kind = Answer::Kind::done;
    if (const auto* create = std::get_if<call::Create>(&call.what)) {
      const bool made = objects.emplace(create->key, create->bytes).second;
      answer.kind = made ? Answer::Kind::created : Answer::Kind::exists;
    } else if (const auto* replace = std::get_if<call::Replace>(&call.what)) {
      objects[replace->key] = replace->bytes;
    } else if (const auto* remove = std::get_if<call::Remove>(&call.what)) {
      objects.erase(remove->key);
    } else if (const auto* get = std::get_if<call::Get>(&call.what)) {
      const auto found = objects.find(get->key);
      answer.kind = found == objects.end() ? Answer::Kind::not_found : Answer::Kind::found;
      if (found != objects.end()) answer.bytes = found->second;
    } else if (const auto* list = std::get_if<call::List>(&call.what)) {
      for (auto at = objects.lower_bound(list->prefix); at != objects.end(); ++at) {
        if (!at->first.starts_with(list->prefix)) break;
        if (at->first <= list->after) continue;
        answer.more = answer.keys.size() == list->keys_max;
        if (answer.more) break;
        answer.keys.push_back(at->first);
      }
    }
    return answer;
  }

  void cut() { cut_ = true; }
  void join() { cut_ = false; }

 private:
  const std::shared_ptr<StoredObjects> store_;
  std::atomic<bool> cut_ = false;
};

class LogStoreTest : public ::testing::Test {
 protected:
  static constexpr Duration kLong = std::chrono::minutes(2);

  /// An owner that lives answers after a tenth of a second. How long others would wait for it, no test waits.
  std::unique_ptr<LogStore> open_member(const std::string& address, std::shared_ptr<WayToStore> way = nullptr,
                                        Duration answers = kLong, Duration challenge = 2 * kLong) {
    LogStore::Options options;
    options.log.self.address = address;
    options.log.look = std::chrono::milliseconds(100);
    options.log.answers = answers;
    options.log.challenge = challenge;
    options.close_within = way != nullptr ? std::chrono::milliseconds(200) : kLong;
    options.log.records_per_snapshot = 10;
    if (way == nullptr) way = std::make_shared<WayToStore>(store_);
    auto opened = LogStore::open(way, options);
    EXPECT_TRUE(opened) << opened.error().message();
    return std::move(*opened);
  }
  static Time soon() { return deadline_in(kLong); }
  static Batch put(const std::string& key, const std::string& value) {
    Batch batch;
    batch.changes.push_back({.key = key, .value = Value{.inlined = value, .places = {}}});
    return batch;
  }
  static std::string text(const LogStore& member, const std::string& key) {
    const auto value = member.get(key);
    return !value ? value.error().message() : *value ? (*value)->inlined : "none";
  }

  const std::shared_ptr<StoredObjects> store_ = std::make_shared<StoredObjects>();
};

TEST_F(LogStoreTest, WhatTheOwnerAppliedAReaderReads) {
  const auto owner = open_member("a");
  EXPECT_TRUE(owner->is_empty());
  EXPECT_EQ(owner->apply(put("k", "v"), soon()).error().code(), Code::failed_precondition);
  ASSERT_TRUE(owner->claim(soon()));
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(owner->apply(put(format("k/{:02}", i), format("{}", i)), soon()));
  Batch erase;
  erase.changes.push_back({.key = "k/07", .value = std::nullopt});
  ASSERT_TRUE(owner->apply(erase, soon()));

  const auto reader = open_member("b");  // From a snapshot: records before it are emptied, or soon will be.
  ASSERT_TRUE(reader->look(soon()));
  EXPECT_EQ(text(*reader, "k/41"), "41");
  EXPECT_EQ(text(*reader, "k/07"), "none");
  std::vector<std::string> keys;
  ASSERT_TRUE(reader->scan("k/1", [&](std::string_view key, const Value&) {
    keys.emplace_back(key);
    return keys.size() < 3;
  }));
  EXPECT_EQ(keys, (std::vector<std::string>{"k/10", "k/11", "k/12"}));
}

TEST_F(LogStoreTest, AnOwnerThatLivesIsNamedToItsChallenger) {
  const auto owner = open_member("tcp://owner:1");
  ASSERT_TRUE(owner->claim(soon()));
  const auto other = open_member("tcp://other:1");
  EXPECT_TRUE(is_refused(other->claim(soon()), Code::unavailable, "tcp://owner:1"));
  EXPECT_TRUE(owner->apply(put("k", "v"), soon()));
}

TEST_F(LogStoreTest, AnOrderlyEndLeavesTheLogToTheNext) {
  auto owner = open_member("a");
  ASSERT_TRUE(owner->claim(soon()));
  ASSERT_TRUE(owner->apply(put("k", "v"), soon()));
  owner.reset();  // Waits for its end to stand.
  const auto next = open_member("b");
  EXPECT_FALSE(next->owner());
  ASSERT_TRUE(next->claim(soon()));
  EXPECT_EQ(text(*next, "k"), "v");
  EXPECT_TRUE(next->apply(put("k", "w"), soon()));
}

TEST_F(LogStoreTest, AnOwnerThatIsCutOffAnswersNoMoreOnceItIsReplaced) {
  const auto way = std::make_shared<WayToStore>(store_);
  const auto owner = open_member("a", way, std::chrono::milliseconds(450));
  ASSERT_TRUE(owner->claim(soon()));
  ASSERT_TRUE(owner->apply(put("k", "v"), soon()));
  const auto standby = open_member("b", nullptr, kLong, std::chrono::milliseconds(500));
  way->cut();
  ASSERT_TRUE(standby->claim(soon()));
  // By the rule of clocks this holds at once, before the old owner knows.
  EXPECT_FALSE(owner->get("k"));
  ASSERT_TRUE(standby->apply(put("k", "w"), soon()));
  EXPECT_EQ(text(*standby, "k"), "w");
  EXPECT_FALSE(owner->apply(put("k", "x"), deadline_in(std::chrono::milliseconds(300))));
}

TEST_F(LogStoreTest, AnOwnerThatWasReplacedAnswersNoMore) {
  const auto way = std::make_shared<WayToStore>(store_);
  const auto owner = open_member("a", way, kLong, std::chrono::milliseconds(500));
  ASSERT_TRUE(owner->claim(soon()));
  way->cut();
  const auto other = open_member("tcp://other:1", nullptr, kLong, std::chrono::milliseconds(500));
  ASSERT_TRUE(other->claim(soon()));
  way->join();
  ASSERT_TRUE(owner->look(soon()));
  EXPECT_EQ(owner->role(), Role::follows);
  EXPECT_TRUE(is_refused(owner->get("k"), Code::unavailable, "tcp://other:1"));
  EXPECT_FALSE(owner->scan("", [](std::string_view, const Value&) { return true; }));
  // Clients go to the new owner by this code.
  EXPECT_EQ(owner->apply(put("k", "x"), soon()).error().code(), Code::unavailable);
  EXPECT_EQ(owner->draw_object().error().code(), Code::unavailable);
}

TEST_F(LogStoreTest, AnInterruptionEndsAWait) {
  const auto way = std::make_shared<WayToStore>(store_);
  const auto owner = open_member("a", way);
  ASSERT_TRUE(owner->claim(soon()));
  way->cut();
  const auto other = open_member("b");
  std::atomic<bool> wanted = false;
  const Interruption interruption([&wanted] { return wanted.exchange(true); });  // The second look, and later ones.
  EXPECT_EQ(other->claim(soon()).error().code(), Code::cancelled) << "it waits for the owner's answer";
  EXPECT_TRUE(is_refused(owner->apply(put("k", "v"), soon()), Code::cancelled));
}

TEST_F(LogStoreTest, BatchesThatWaitShareARecord) {
  const auto owner = open_member("a");
  ASSERT_TRUE(owner->claim(soon()));
  constexpr int kThreads = 8;
  constexpr int kEach = 25;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&owner, t] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(owner->apply(put(format("{}/{}", t, i), "v"), soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  int found = 0;
  ASSERT_TRUE(owner->scan("", [&](std::string_view, const Value&) { return ++found > 0; }));
  EXPECT_EQ(found, kThreads * kEach);
}

TEST_F(LogStoreTest, ABatchThatNamesAnUnknownUploadIsRefused) {
  const auto owner = open_member("a");
  ASSERT_TRUE(owner->claim(soon()));
  Batch batch;
  const Place stranger{.object = {.token = {.high = 1, .low = 2}, .draw = 3}, .offset = 0, .bytes = 5, .digest = {}};
  batch.changes.push_back({.key = "k", .value = Value{.inlined = "", .places = {stranger}}});
  EXPECT_EQ(owner->apply(batch, soon()).error().code(), Code::failed_precondition);
  const auto object = owner->draw_object();
  ASSERT_TRUE(object);
  batch.changes[0].value->places[0].object = *object;
  EXPECT_TRUE(owner->apply(batch, soon()));
  EXPECT_EQ(owner->apply(put("k", std::string(kInlineBytesMax + 1, 'x')), soon()).error().code(),
            Code::invalid_argument);
}

}  // namespace
}  // namespace freshet::log
