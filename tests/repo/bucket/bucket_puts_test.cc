// SPDX-License-Identifier: Apache-2.0
/// Puts into a bucket: what they ask the store for, and who waits for whom.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/interruption.h"
#include "repo/bucket/brought.h"
#include "repo/bucket/bucket_backend.h"
#include "repo/bucket/store_caller.h"
#include "repo/log/log_record.h"
#include "repo/object_store/memory_object_store.h"
#include "tests/repo/bucket/gated_store.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using StoreCall = GatedStore::Call;

class BucketPuts : public testing::Test {
 protected:
  std::unique_ptr<ProviderRepository> open() {
    auto backend = open_bucket_backend(store_, {});
    FRESHET_CHECK(backend.has_value());
    return open_or_die(std::move(*backend));
  }
  std::size_t objects(std::string_view prefix) const {
    const auto page = memory_->list(prefix, "", kListKeysMax, deadline_in(std::chrono::minutes(1)));
    return page ? page->objects.size() : 0;
  }
  /// Records with a change of a repository's. The owner's own, a time of the store's clock for instance, come when they
  /// like.
  std::size_t changing_records() const {
    const Time deadline = deadline_in(std::chrono::minutes(1));
    const auto page = memory_->list("log/", "", kListKeysMax, deadline);
    std::size_t count = 0;
    for (std::uint64_t number = 1; page && number <= page->objects.size(); ++number) {
      const auto object = memory_->get(log::record_key(number), kObjectBytesMax, deadline);
      FRESHET_CHECK(object.has_value());
      const auto record = log::decode_record(object->bytes, number);
      FRESHET_CHECK(record.has_value());
      count += std::ranges::any_of(record->batches, [](const log::Batch& one) { return !one.changes.empty(); }) ? 1 : 0;
    }
    return count;
  }
  TestVersion make(std::uint64_t sequence, std::vector<std::uint64_t> sizes = {4, 8}) {
    return make_version("net", test_id(sequence), test_architecture(std::move(sizes)), nullptr, {}, random_);
  }

  std::mt19937_64 random_{7};
  const std::shared_ptr<MemoryObjectStore> memory_ = std::make_shared<MemoryObjectStore>();
  const std::shared_ptr<GatedStore> store_ = std::make_shared<GatedStore>(memory_);
};

/// The places of its blobs are in the batch of its records.
TEST_F(BucketPuts, OneIsOneRecordOfTheLog) {
  auto repository = open();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const std::size_t records = changing_records();
    const std::size_t uploads = objects("objects/");
    ASSERT_TRUE(put(*repository, make(i)));
    EXPECT_EQ(changing_records() - records, 1u);
    EXPECT_EQ(objects("objects/") - uploads, 1u) << "its tensors share it";
  }
  repository.reset();
  repository = open();
  const auto report = repository->verify(std::nullopt, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->corrupt.size(), 0u);
  EXPECT_EQ(repository->versions("net").value().size(), 3u);
}

/// The first record waits until the second put has brought its bytes.
TEST_F(BucketPuts, OneBeginsWhileTheRecordOfAnotherIsOnItsWay) {
  auto repository = open();
  const std::size_t before = objects("objects/");
  std::atomic<bool> waits{false};
  std::atomic<bool> came{true};
  store_->before = [&](StoreCall call, std::string_view key) {
    if (call != StoreCall::create || !key.starts_with("log/") || waits.exchange(true)) return;
    came = came_true([&] { return objects("objects/") >= before + 2; });
  };
  const TestVersion first = make(1);
  const TestVersion second = make(2);
  {
    const std::jthread one([&] { EXPECT_TRUE(put(*repository, first)); });
    came_true([&] { return waits.load(); });
    EXPECT_TRUE(put(*repository, second));
  }
  EXPECT_TRUE(came);
  EXPECT_EQ(repository->versions("net").value().size(), 2u);
}

/// The record of the first try is on its way when the second one comes. The first one is told that its answer is lost,
/// and the record stands all the same.
TEST_F(BucketPuts, ASecondTryThatWaitedForTheFirstErasesNothing) {
  auto repository = open();
  std::atomic<bool> is_sent{false};
  std::atomic<bool> second_waits{false};
  std::atomic<bool> first_ended{false};
  std::atomic<bool> uploads_again{false};
  store_->before = [&](StoreCall call, std::string_view key) {
    if (call != StoreCall::create) return;
    if (first_ended && key.starts_with("objects/")) uploads_again = true;
    if (!key.starts_with("log/") || is_sent.exchange(true)) return;
    came_true([&] { return first_ended.load(); });
    // Time for a second try that believes that nothing is stored. A right one waits for this record.
    for (int i = 0; i < 300 && !uploads_again; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  const TestVersion version = make(1);
  {
    const std::jthread first([&] {
      const Interruption lost([&] { return second_waits.load(); });
      EXPECT_FALSE(put(*repository, version));
      first_ended = true;
    });
    came_true([&] { return is_sent.load(); });
    const Interruption asked([&] {
      second_waits = true;
      return false;
    });
    EXPECT_TRUE(is_refused(put(*repository, version), Code::already_exists));
  }
  ASSERT_TRUE(put(*repository, make(2)));
  const auto report = repository->verify(std::nullopt, {});
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->corrupt.size(), 0u);
  EXPECT_EQ(repository->versions("net").value().size(), 2u);
}

/// An owner that ended between a snapshot's name and the snapshot leaves the name alone, in a pool for ever.
TEST_F(BucketPuts, ANameOfASnapshotThatNeverCameToBeHidesNothing) {
  auto repository = open();
  ASSERT_TRUE(put(*repository, make(1)));
  repository.reset();
  store_->phantom = log::snapshot_key(1000);
  repository = open();
  EXPECT_EQ(repository->versions("net").value().size(), 1u);
  ASSERT_TRUE(put(*repository, make(2)));
}

/// Bytes of which another process said the digest are read and proved while others put.
TEST_F(BucketPuts, OthersGoOnWhileADedupPutProvesBytes) {
  auto repository = open();
  const TestVersion brought = make(1, {100});
  const Bytes bytes = brought.bytes[0];
  const PartToBring part{.bytes = bytes.size(), .crc32c = crc32c_of(bytes)};
  const auto all = repository->sign_uploads(std::vector{part}, std::chrono::minutes(1));
  ASSERT_TRUE(all) << all.error().message();
  const auto& upload = all->uploads.front();
  ASSERT_EQ(memory_->create(upload.request, bytes, deadline_in(std::chrono::minutes(1))).outcome, Created::created);
  const BroughtTensor tensor{.tensor = 0, .parts = {{upload.object, part.bytes, part.crc32c, digest_of(bytes)}}};
  ASSERT_TRUE(repository->put_brought(brought.manifest, brought.bytes_of(), {}, std::vector{tensor}));

  std::atomic<bool> reads{false};
  std::atomic<bool> has_put{false};
  std::atomic<bool> came{true};
  store_->before = [&](StoreCall call, std::string_view) {
    if (call != StoreCall::read || reads.exchange(true)) return;
    came = came_true([&] { return has_put.load(); });
  };
  TestVersion same = brought;
  same.manifest.id = test_id(2);
  same.manifest.owners = OwnerMap::all_written_by(same.manifest.id, 1);
  {
    const std::jthread one([&] { EXPECT_TRUE(put(*repository, same, {.dedup = true})); });
    came_true([&] { return reads.load(); });
    EXPECT_TRUE(put(*repository, make(3)));
    has_put = true;
  }
  EXPECT_TRUE(came);
  EXPECT_EQ(repository->owners({.model = "net", .number = 3}).value().front().segment.writer, brought.manifest.id);
}

/// Small tensors share an object, and come by one request. Damage is told as that of a tensor.
TEST_F(BucketPuts, SmallTensorsAreReadByOneRequest) {
  auto repository = open();
  const TestVersion version = make(1, std::vector<std::uint64_t>(100, 1000));
  const auto name = put(*repository, version);
  ASSERT_TRUE(name) << name.error().message();
  std::atomic<int> reads{0};
  store_->before = [&](StoreCall call, std::string_view) { reads += call == StoreCall::read ? 1 : 0; };
  const auto record = repository->get(*name);
  ASSERT_TRUE(record);
  const int for_the_manifest = reads.exchange(0);
  EXPECT_LE(for_the_manifest, 1);
  std::vector<std::vector<std::byte>> outs(100, std::vector<std::byte>(version.bytes[0].size()));
  std::vector<Repository::TensorRead> all;
  for (std::uint32_t i = 0; i < 100; ++i) all.push_back({.tensor = i, .out = outs[i]});
  ASSERT_TRUE(repository->read(*record, all));
  EXPECT_EQ(reads, 1);
  EXPECT_TRUE(outs == version.bytes);

  const auto page = memory_->list("objects/", "", kListKeysMax, deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(page);
  for (const ListedObject& one : page->objects) {
    auto object = memory_->get(one.key, one.bytes, deadline_in(std::chrono::minutes(1)));
    ASSERT_TRUE(object);
    object->bytes.back() ^= 1;
    ASSERT_TRUE(memory_->put(one.key, bytes_of(object->bytes.data(), object->bytes.size()),
                             deadline_in(std::chrono::minutes(1))));
  }
  EXPECT_TRUE(is_refused(repository->read(*record, all), Code::corrupt));
}

/// One listing tells of all objects of a drawing. What it does not have, or has otherwise, is asked for.
TEST_F(BucketPuts, WhatWasBroughtIsFoundByOneListing) {
  auto log = log::LogStore::open(std::make_shared<bucket::ObjectStoreCaller>(store_), {});
  ASSERT_TRUE(log);
  ASSERT_TRUE((*log)->claim(deadline_in(std::chrono::minutes(1))));
  const auto names = (*log)->draw_objects(20);
  ASSERT_TRUE(names);
  std::vector<BroughtPart> parts;
  for (const log::ObjectName& name : *names) {
    const std::vector<std::byte> bytes(100 + parts.size(), std::byte{7});
    parts.push_back({log::object_key(name), bytes.size(), crc32c_of(bytes), digest_of(bytes)});
    if (parts.size() == 4) continue;  // Never brought.
    ASSERT_EQ(memory_->create(parts.back().object, bytes, deadline_in(std::chrono::minutes(1))).outcome,
              Created::created);
  }
  parts[9].bytes += 1;
  store_->unlisted = parts[14].object;
  const log::ObjectName foreign{.token = {.high = 1, .low = 2}, .draw = 3};
  parts.push_back({log::object_key(foreign), 1, 0, {}});
  std::atomic<int> heads{0};
  std::atomic<int> lists{0};
  store_->before = [&](StoreCall call, std::string_view key) {
    if (call == StoreCall::head) ++heads;
    if (call == StoreCall::list && key.starts_with("objects/")) ++lists;
  };
  const auto found = bucket::find_brought_objects(*store_, **log, parts);
  ASSERT_TRUE(found) << found.error().message();
  std::vector<bool> expected(21, true);
  expected[3] = expected[9] = expected[20] = false;
  EXPECT_EQ(*found, expected);
  EXPECT_EQ(lists, 1);
  EXPECT_EQ(heads, 3);
}

}  // namespace
}  // namespace freshet
