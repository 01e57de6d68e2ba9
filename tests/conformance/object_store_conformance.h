// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What every object store must do. A store's test instantiates ObjectStoreConformance with an ObjectStoreCase.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "repo/object_store/exclusion.h"
#include "repo/object_store/object_store.h"
#include "tests/support/seeded_bytes.h"

namespace freshet {

/// A store without objects, and what sends its signed requests.
struct StoreUnderTest {
  std::shared_ptr<ObjectStore> store;
  std::shared_ptr<SignedObjects> signed_objects;
};

struct ObjectStoreCase {
  std::string name;
  std::function<Result<StoreUnderTest>()> open;
  /// Non-empty: this machine has no such store.
  std::function<std::string()> why_not = {};
};

class ObjectStoreConformance : public testing::TestWithParam<ObjectStoreCase> {
 protected:
  void SetUp() override {
    const std::string why_not = GetParam().why_not ? GetParam().why_not() : "";
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    auto opened = GetParam().open();
    ASSERT_TRUE(opened) << opened.error().message();
    store_ = std::move(opened->store);
    signed_objects_ = std::move(opened->signed_objects);
  }

  static Time soon() { return deadline_in(std::chrono::minutes(1)); }
  static Bytes bytes_in(std::string_view text) { return bytes_of(text.data(), text.size()); }
  static std::vector<std::byte> some_bytes(std::size_t count, std::uint64_t seed) {
    return test::seeded_bytes(count, seed);
  }

  Created create(const std::string& key, std::string_view text) {
    const Creation creation = store_->create(key, bytes_in(text), soon());
    EXPECT_TRUE(creation.outcome == Created::created || creation.outcome == Created::exists)
        << name_of(creation.outcome) << ": " << creation.error.message();
    return creation.outcome;
  }
  std::string get(const std::string& key) {
    const Result<Object> object = store_->get(key, kObjectBytesMax, soon());
    EXPECT_TRUE(object) << object.error().message();
    return object ? object->bytes : "";
  }
  std::vector<std::string> list(std::string_view prefix, std::string_view after, std::size_t keys_max, bool more) {
    const Result<ObjectPage> page = store_->list(prefix, after, keys_max, soon());
    EXPECT_TRUE(page) << page.error().message();
    std::vector<std::string> keys;
    if (!page) return keys;
    EXPECT_EQ(page->more, more) << prefix << " after " << after;
    for (const ListedObject& one : page->objects) keys.push_back(one.key);
    return keys;
  }

  std::shared_ptr<ObjectStore> store_;
  std::shared_ptr<SignedObjects> signed_objects_;
};

TEST_P(ObjectStoreConformance, ACreationMakesAnObjectOnce) {
  EXPECT_EQ(create("log/1", "first"), Created::created);
  EXPECT_EQ(create("log/1", "second"), Created::exists);
  EXPECT_EQ(get("log/1"), "first");
  EXPECT_EQ(create("log/2", ""), Created::created) << "an empty object is an object";
  EXPECT_EQ(create("log/2", "x"), Created::exists);
  EXPECT_EQ(get("log/2"), "");
}

TEST_P(ObjectStoreConformance, OneOfManyWins) {
  for (int round = 0; round < 4; ++round) {
    const std::string key = "raced/" + std::to_string(round);
    std::atomic<int> winners{0};
    std::atomic<int> winner{-1};
    {
      std::vector<std::jthread> racers;
      for (int racer = 0; racer < 6; ++racer) {
        racers.emplace_back([&, racer] {
          if (create(key, std::to_string(racer)) != Created::created) return;
          ++winners;
          winner = racer;
        });
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(get(key), std::to_string(winner));
  }
}

TEST_P(ObjectStoreConformance, TheProbeOfExclusionIsContent) {
  const Status checked = check_exclusion(*store_, "probe", soon());
  EXPECT_TRUE(checked) << checked.error().message();
  EXPECT_TRUE(list("probe", "", kListKeysMax, false).empty()) << "the probe leaves objects behind";
}

TEST_P(ObjectStoreConformance, APutReplaces) {
  ASSERT_TRUE(store_->put("log/1", bytes_in("body"), soon()));
  EXPECT_EQ(get("log/1"), "body");
  ASSERT_TRUE(store_->put("log/1", {}, soon()));
  EXPECT_EQ(get("log/1"), "") << "an emptied record";
  EXPECT_EQ(create("log/1", "again"), Created::exists) << "an emptied record's name is not free";
}

TEST_P(ObjectStoreConformance, ARemovedObjectIsGone) {
  ASSERT_EQ(create("blobs/a", "x"), Created::created);
  ASSERT_EQ(create("blobs/b", "y"), Created::created);
  for (int time = 0; time < 2; ++time) EXPECT_TRUE(store_->remove("blobs/a", soon()));
  EXPECT_EQ(store_->get("blobs/a", 10, soon()).error().code(), Code::not_found);
  EXPECT_EQ(store_->head("blobs/a", soon()).error().code(), Code::not_found);
  std::byte one{};
  EXPECT_EQ(store_->read("blobs/a", 0, MutableBytes(&one, 1), soon()).error().code(), Code::not_found);
  EXPECT_EQ(get("blobs/b"), "y");
}

TEST_P(ObjectStoreConformance, BytesOfAllSizesReadBack) {
  constexpr std::size_t kMiB = 1 << 20;
  for (const std::size_t size : {std::size_t{1}, std::size_t{4095}, kMiB, kMiB + 1, 9 * kMiB + 13}) {
    const std::string key = "blobs/" + std::to_string(size);
    const std::vector<std::byte> bytes = some_bytes(size, size);
    const Creation creation = store_->create(key, bytes, soon());
    ASSERT_EQ(creation.outcome, Created::created) << creation.error.message();
    std::vector<std::byte> out(size);
    const Status read = store_->read(key, 0, out, soon());
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(test::same_bytes(out, bytes)) << size;
    const Result<ObjectHead> head = store_->head(key, soon());
    ASSERT_TRUE(head) << head.error().message();
    EXPECT_EQ(head->bytes, size);
    EXPECT_EQ(head->crc32c.value_or(crc32c_of(bytes)), crc32c_of(bytes));
  }
}

TEST_P(ObjectStoreConformance, RangesAreThoseThatWereAsked) {
  const std::vector<std::byte> bytes = some_bytes(100'000, 7);
  EXPECT_NE(store_->create("blobs/a", bytes, deadline_in(std::chrono::milliseconds(300)), crc32c_of(bytes) + 1).outcome,
            Created::created)
      << "a store keeps no bytes that differ from their checksum";
  ASSERT_EQ(store_->create("blobs/a", bytes, soon()).outcome, Created::created);
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, 1}, {5, 10}, {99'999, 1}, {1, 99'999}}) {
    std::vector<std::byte> out(size);
    const Status read = store_->read("blobs/a", offset, out, soon());
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_TRUE(test::same_bytes(out, Bytes(bytes).subspan(offset, size))) << offset;
  }
  std::vector<std::byte> out(2);
  for (const std::uint64_t offset : {std::uint64_t{99'999}, std::uint64_t{100'000}, std::uint64_t{1} << 40}) {
    EXPECT_EQ(store_->read("blobs/a", offset, out, soon()).error().code(), Code::corrupt) << offset;
  }
  EXPECT_TRUE(store_->read("blobs/a", 100'000, {}, soon()));
  EXPECT_EQ(store_->read("blobs/none", 0, {}, soon()).error().code(), Code::not_found);
  EXPECT_EQ(store_->get("blobs/a", 99'999, soon()).error().code(), Code::out_of_space);
}

/// A page of text: a store, or a proxy that the client must not take it for, may give it another type.
TEST_P(ObjectStoreConformance, AnObjectMayBeAPage) {
  const std::string page = "<!DOCTYPE html>\n<html><body>an object</body></html>\n";
  ASSERT_EQ(create("blobs/page", page), Created::created);
  EXPECT_EQ(get("blobs/page"), page);
  std::vector<std::byte> out(page.size());
  EXPECT_TRUE(store_->read("blobs/page", 0, out, soon()));
  EXPECT_TRUE(store_->head("blobs/page", soon()));
}

TEST_P(ObjectStoreConformance, ListingsAreInOrderAndPaged) {
  const std::vector<std::string> keys = {"log/00", "log/01", "log/10", "log/1A", "log/a-", "log/a.", "log/a_b"};
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) ASSERT_EQ(create(*key, "x"), Created::created);
  ASSERT_EQ(create("lof", "x"), Created::created);
  ASSERT_EQ(create("loh", "x"), Created::created);
  EXPECT_EQ(list("log/", "", kListKeysMax, false), keys);
  EXPECT_EQ(list("log/1", "", kListKeysMax, false), (std::vector<std::string>{"log/10", "log/1A"}));
  EXPECT_EQ(list("log/", "log/01", 2, true), (std::vector<std::string>{"log/10", "log/1A"}));
  EXPECT_EQ(list("log/", "log/05", 1, true), (std::vector<std::string>{"log/10"})) << "after what is no key";
  EXPECT_EQ(list("log/", "a", 1, true), (std::vector<std::string>{"log/00"})) << "after what comes before the prefix";
  EXPECT_TRUE(list("log/", "log/a_b", 5, false).empty());
  EXPECT_TRUE(list("nothing", "", 5, false).empty());
  std::vector<std::string> paged;
  for (bool more = true; more;) {
    const auto page = store_->list("log/", paged.empty() ? "" : paged.back(), 3, soon());
    ASSERT_TRUE(page) << page.error().message();
    for (const ListedObject& one : page->objects) paged.push_back(one.key);
    more = page->more;
  }
  EXPECT_EQ(paged, keys);
  const auto all = store_->list("", "", kListKeysMax, soon());
  ASSERT_TRUE(all) << all.error().message();
  EXPECT_EQ(all->objects.size(), keys.size() + 2);
  EXPECT_EQ(all->objects.front().bytes, 1u);
}

TEST_P(ObjectStoreConformance, TimesAreOfOneClock) {
  const auto before = store_->now_unix_s(soon());
  ASSERT_TRUE(before) << before.error().message();
  ASSERT_EQ(create("blobs/a", "x"), Created::created);
  const auto head = store_->head("blobs/a", soon());
  const auto page = store_->list("blobs/", "", 1, soon());
  const auto after = store_->now_unix_s(soon());
  ASSERT_TRUE(head && page && after);
  EXPECT_LE(*before, head->modified_unix_s);
  EXPECT_LE(head->modified_unix_s, *after);
  // Some stores round differently in heads and listings.
  EXPECT_LE(std::llabs(page->objects.front().modified_unix_s - head->modified_unix_s), 1);
}

TEST_P(ObjectStoreConformance, BadKeysAndBadLengthsAreRefused) {
  for (const std::string& key : {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"),
                                 std::string("../a"), std::string("a/./b"), std::string("a b"), std::string("a\n"),
                                 std::string("a?b"), std::string("a%2fb"), std::string(513, 'a')}) {
    const Creation creation = store_->create(key, {}, soon());
    EXPECT_EQ(creation.outcome, Created::refused) << key;
    EXPECT_EQ(creation.error.code(), Code::invalid_argument) << key;
    EXPECT_EQ(store_->put(key, {}, soon()).error().code(), Code::invalid_argument) << key;
    EXPECT_EQ(store_->remove(key, soon()).error().code(), Code::invalid_argument) << key;
    EXPECT_EQ(store_->get(key, 1, soon()).error().code(), Code::invalid_argument) << key;
    EXPECT_EQ(store_->head(key, soon()).error().code(), Code::invalid_argument) << key;
    EXPECT_EQ(store_->sign_get(key, std::chrono::minutes(1)).error().code(), Code::invalid_argument) << key;
  }
  const std::vector<std::byte> long_one(kObjectBytesMax + 1);
  EXPECT_EQ(store_->create("a", long_one, soon()).error.code(), Code::invalid_argument);
  EXPECT_EQ(store_->put("a", long_one, soon()).error().code(), Code::invalid_argument);
  EXPECT_EQ(store_->list("", "", 0, soon()).error().code(), Code::invalid_argument);
  EXPECT_EQ(store_->list("", "", kListKeysMax + 1, soon()).error().code(), Code::invalid_argument);
  EXPECT_EQ(store_->sign_get("a", std::chrono::hours(2)).error().code(), Code::invalid_argument);
  EXPECT_EQ(store_->sign_create("a", 1, 0, Duration::zero()).error().code(), Code::invalid_argument);
}

TEST_P(ObjectStoreConformance, ADeadlineThatPassedEndsACall) {
  const Time past = deadline_in(Duration::zero());
  const Creation creation = store_->create("log/1", bytes_in("x"), past);
  EXPECT_NE(creation.outcome, Created::created);
  EXPECT_EQ(creation.error.code(), Code::timed_out);
  EXPECT_EQ(store_->head("log/2", past).error().code(), Code::timed_out);
  EXPECT_EQ(store_->put("log/3", {}, past).error().code(), Code::timed_out);
  EXPECT_EQ(store_->list("", "", 1, past).error().code(), Code::timed_out);
}

TEST_P(ObjectStoreConformance, SignedRequestsNeedNoCredentials) {
  const std::vector<std::byte> bytes = some_bytes(3 << 20, 5);
  const auto create = store_->sign_create("blobs/a", bytes.size(), crc32c_of(bytes), std::chrono::minutes(1));
  const auto get = store_->sign_get("blobs/a", std::chrono::minutes(1));
  ASSERT_TRUE(create && get);
  const Creation first = signed_objects_->create(*create, bytes, soon());
  EXPECT_EQ(first.outcome, Created::created) << first.error.message();
  EXPECT_EQ(signed_objects_->create(*create, bytes, soon()).outcome, Created::exists) << "it replaces nothing";
  std::vector<std::byte> out(1 << 20);
  const Status read = signed_objects_->read(*get, 1 << 20, out, soon());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_TRUE(test::same_bytes(out, Bytes(bytes).subspan(1 << 20, 1 << 20)));
  EXPECT_EQ(store_->head("blobs/a", soon())->bytes, bytes.size());
}

TEST_P(ObjectStoreConformance, ASignedCreationTakesItsOwnBytesOnly) {
  const std::vector<std::byte> bytes = some_bytes(1000, 5);
  std::vector<std::byte> other = bytes;
  other[500] ^= std::byte{1};
  const auto request = store_->sign_create("blobs/a", bytes.size(), crc32c_of(bytes), std::chrono::minutes(1));
  ASSERT_TRUE(request);
  EXPECT_NE(signed_objects_->create(*request, other, soon()).outcome, Created::created) << "another checksum";
  EXPECT_NE(signed_objects_->create(*request, Bytes(bytes).first(999), soon()).outcome, Created::created) << "shorter";
  other = bytes;
  other.push_back(std::byte{0});
  EXPECT_NE(signed_objects_->create(*request, other, soon()).outcome, Created::created) << "longer";
  EXPECT_EQ(store_->head("blobs/a", soon()).error().code(), Code::not_found);
  EXPECT_EQ(signed_objects_->create(*request, bytes, soon()).outcome, Created::created);
}

TEST_P(ObjectStoreConformance, ASignedRequestIsForItsUseOnly) {
  ASSERT_EQ(create("blobs/a", "first"), Created::created);
  const auto read = store_->sign_get("blobs/a", std::chrono::minutes(1));
  const auto make = store_->sign_create("blobs/b", 1, crc32c_of(bytes_in("x")), std::chrono::minutes(1));
  ASSERT_TRUE(read && make);
  EXPECT_EQ(signed_objects_->create(*read, bytes_in("x"), soon()).outcome, Created::refused);
  std::byte one{};
  EXPECT_EQ(signed_objects_->read(*make, 0, MutableBytes(&one, 1), soon()).error().code(), Code::failed_precondition);
  SignedRequest elsewhere = *read;
  elsewhere.url.replace(elsewhere.url.find("blobs/a"), 7, "blobs/b");
  ASSERT_EQ(create("blobs/b", "other"), Created::created);
  if (store_->kind() == "s3") {  // The others sign nothing: they serve tests, or holders of a keyring.
    EXPECT_EQ(signed_objects_->read(elsewhere, 0, MutableBytes(&one, 1), soon()).error().code(),
              Code::failed_precondition);
  }
  EXPECT_EQ(get("blobs/a"), "first");
}

}  // namespace freshet
