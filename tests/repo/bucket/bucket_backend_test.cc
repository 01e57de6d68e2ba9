// SPDX-License-Identifier: Apache-2.0
/// The repository in an object store in memory: the conformance suite of backends, and several members of one log.

#include "repo/bucket/bucket_backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/format.h"
#include "repo/bucket/store_caller.h"
#include "repo/log/codec.h"
#include "repo/object_store/memory_object_store.h"
#include "repo/repository.h"
#include "tests/conformance/backend_conformance.h"
#include "tests/repo/bucket/gated_store.h"
#include "tests/repo/world.h"
#include "tests/support/eventually.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

/// A folder's name stands for a store of its own, which outlives the backends that open it.
std::shared_ptr<MemoryObjectStore> objects_of(const std::string& folder) {
  static std::map<std::string, std::shared_ptr<MemoryObjectStore>> stores;
  auto& store = stores[folder];
  if (!store) store = std::make_shared<MemoryObjectStore>();
  return store;
}

const BackendCase kBucketInMemory{
    .name = "bucket", .open = [](const std::string& folder) { return open_bucket_backend(objects_of(folder), {}); }};

INSTANTIATE_TEST_SUITE_P(Buckets, BackendConformance, testing::Values(kBucketInMemory),
                         [](const auto& instance) { return instance.param.name; });
INSTANTIATE_TEST_SUITE_P(Buckets, DurableBackendConformance, testing::Values(kBucketInMemory),
                         [](const auto& instance) { return instance.param.name; });

class BucketTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> open(const BucketOptions& options = {}) {
    auto opened = open_bucket_backend(store_, options);
    EXPECT_TRUE(opened) << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }
  std::size_t objects(std::string_view prefix) {
    const auto page = store_->list(prefix, "", kListKeysMax, deadline_in(std::chrono::minutes(1)));
    return page ? page->objects.size() : 0;
  }
  void remove_objects() {
    const auto page = store_->list("objects/", "", kListKeysMax, deadline_in(std::chrono::minutes(1)));
    ASSERT_TRUE(page);
    for (const ListedObject& one : page->objects) {
      ASSERT_TRUE(store_->remove(one.key, deadline_in(std::chrono::minutes(1))));
    }
  }
  std::shared_ptr<MemoryObjectStore> store_ = std::make_shared<MemoryObjectStore>();
};

TEST_F(BucketTest, NothingIsMadeWhereNothingIsWanted) {
  BucketOptions options;
  options.create = false;
  EXPECT_EQ(open_bucket_backend(store_, options).error().code(), Code::not_found);
  options.create = true;
  options.read_only = true;
  EXPECT_EQ(open_bucket_backend(store_, options).error().code(), Code::not_found);
  EXPECT_EQ(objects(""), 0u);
}

TEST_F(BucketTest, AStoreWithoutExclusionKeepsNoRepository) {
  store_->set_faults({.exclusive = false});
  EXPECT_TRUE(is_refused(open_bucket_backend(store_, {}), Code::unsupported));
  EXPECT_EQ(objects("log/"), 0u);
}

TEST_F(BucketTest, ALivingOwnerKeepsIt) {
  BucketOptions options;
  options.log.self.address = "tcp://here:1";
  const auto owner = open(options);
  ASSERT_NE(owner, nullptr);
  ASSERT_TRUE(owner->apply({Backend::Put{"a", "1"}}));
  EXPECT_TRUE(is_refused(open_bucket_backend(store_, {}), Code::unavailable, "tcp://here:1"));
  const auto reader = open({.create = false, .read_only = true});
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(reader->get("a").value_or("?"), "1");
  EXPECT_EQ(reader->apply({Backend::Put{"a", "2"}}).error().code(), Code::failed_precondition);
  EXPECT_TRUE(owner->apply({Backend::Put{"a", "2"}})) << "the challenge did not hurt it";
}

TEST_F(BucketTest, SmallBlobsOfAPutShareAnObject) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  auto writer = owner->write_blobs();
  ASSERT_TRUE(writer);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE((*writer)->write(std::to_string(i), std::vector<std::byte>(5000, std::byte{7})));
  }
  ASSERT_TRUE((*writer)->commit());
  EXPECT_EQ(objects("objects/"), 1u);
}

TEST_F(BucketTest, LargeRecordsAreObjects) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const std::string large(10'000'000, 'x');
  ASSERT_TRUE(owner->apply({Backend::Put{"large", large}, Backend::Put{"small", "y"}}));
  EXPECT_EQ(owner->get("large").value_or("?"), large);
  EXPECT_EQ(objects("objects/"), 1u);
}

TEST_F(BucketTest, ABlobThatIsWrittenAgainIsNotErasedLater) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  for (int round = 0; round < 3; ++round) {
    auto writer = owner->write_blobs();
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write("k", std::vector<std::byte>(10, std::byte{7})));
    ASSERT_TRUE((*writer)->commit());
    std::vector<std::byte> out(10);
    EXPECT_TRUE(owner->read_blob("k", 0, out));
    ASSERT_TRUE(owner->reclaim());
    EXPECT_TRUE(owner->read_blob("k", 0, out));
    ASSERT_TRUE(owner->erase_blob("k"));
    EXPECT_EQ(owner->read_blob("k", 0, out).error().code(), Code::not_found);
  }
}

TEST_F(BucketTest, ALostObjectIsDamageAndALostConnectionIsNone) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  auto writer = owner->write_blobs();
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->write("k", std::vector<std::byte>(10, std::byte{7})));
  ASSERT_TRUE((*writer)->commit());
  const auto page = store_->list("objects/", "", 1, deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(page);
  ASSERT_TRUE(store_->remove(page->objects.front().key, deadline_in(std::chrono::minutes(1))));
  std::vector<std::byte> out(10);
  EXPECT_EQ(owner->read_blob("k", 0, out).error().code(), Code::corrupt);
}

TEST_F(BucketTest, ADamagedObjectIsNotRead) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const std::vector<std::byte> bytes(std::size_t{3} << 20, std::byte{7});
  auto writer = owner->write_blobs();
  ASSERT_TRUE(writer);
  ASSERT_EQ((*writer)->write_and_digest("k", bytes).value(), digest_of(bytes));
  ASSERT_TRUE((*writer)->commit());
  std::vector<std::byte> out(bytes.size());
  EXPECT_EQ(owner->read_and_digest("k", out).value(), digest_of(bytes));
  EXPECT_EQ(out, bytes);
  const auto page = store_->list("objects/", "", 1, deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(page);
  std::vector<std::byte> other = bytes;
  other.back() ^= std::byte{1};
  ASSERT_TRUE(store_->put(page->objects.front().key, other, deadline_in(std::chrono::minutes(1))));
  EXPECT_EQ(owner->read_and_digest("k", out).error().code(), Code::corrupt);
  EXPECT_TRUE(is_refused(owner->read_blob("k", 0, out), Code::corrupt, page->objects.front().key));
}

TEST_F(BucketTest, SeveralObjectsMoveAtATime) {
  constexpr int kAtATime = 4;
  ASSERT_EQ(store_->transfers_max(), std::size_t{kAtATime});
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  std::atomic<int> inside{0};
  std::atomic<bool> together{false};
  const auto wait_for_others = [&](Duration) {
    if (++inside == kAtATime) together = true;
    came_true([&] { return together.load(); });
    --inside;
  };
  auto writer = owner->write_blobs();
  ASSERT_TRUE(writer);
  const std::vector<std::byte> bytes(std::size_t{4} << 20, std::byte{7});
  store_->set_faults({.delay_max = std::chrono::nanoseconds(1), .on_delay = wait_for_others});
  for (int i = 0; i < kAtATime; ++i) {
    ASSERT_TRUE((*writer)->write_and_digest(std::to_string(i), Bytes(bytes).subspan(static_cast<std::size_t>(i))));
  }
  ASSERT_TRUE((*writer)->commit());
  EXPECT_TRUE(together);
  EXPECT_EQ(owner->readers_max(), std::size_t{kAtATime}) << "so many threads of a read";
}

/// A put that fails names nothing, and leaves the next one nothing but objects to sweep.
TEST_F(BucketTest, TheFirstErrorOfAPutEndsIt) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const std::vector<std::byte> bytes(std::size_t{1} << 20, std::byte{7});
  auto writer = owner->write_blobs();
  ASSERT_TRUE(writer);
  ASSERT_TRUE((*writer)->write_and_digest("a", bytes));
  store_->set_faults({.busy = 1000});
  Status ended;
  for (int i = 0; i < 100 && ended; ++i) {
    ended = (*writer)->write_and_digest(std::to_string(i), bytes).map([](const Digest&) {});
  }
  if (ended) ended = (*writer)->commit();
  EXPECT_EQ(ended.error().code(), Code::unavailable);
  EXPECT_EQ((*writer)->commit().error().code(), Code::unavailable) << "a failed writer commits nothing";
  store_->set_faults({});
  ASSERT_TRUE(owner->recover());
  std::size_t blobs = 0;
  EXPECT_TRUE(owner->list_blobs([&](std::string_view, std::uint64_t) { return ++blobs > 0; }));
  EXPECT_EQ(blobs, 0u);
}

TEST_F(BucketTest, AReaderKeepsWhatItOpened) {
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const std::vector<std::byte> bytes(10, std::byte{7});
  for (const char* key : {"lost", "k"}) {
    auto writer = owner->write_blobs();
    ASSERT_TRUE(writer);
    ASSERT_TRUE((*writer)->write(key, bytes));
    ASSERT_TRUE((*writer)->commit());
    if (key == std::string_view("lost")) remove_objects();
  }
  ASSERT_TRUE(owner->apply({Backend::Put{"a", "1"}, Backend::Put{"large", std::string(10'000, 'x')}}));
  const auto reader = open({.create = false, .read_only = true});
  ASSERT_NE(reader, nullptr);
  ASSERT_TRUE(owner->erase_blob("k"));
  ASSERT_TRUE(owner->apply({Backend::Put{"a", "2"}, Backend::Put{"b", "2"}, Backend::Erase{"large"}}));

  // A lost object lets it read to the log's end. Its values stay those of its opening.
  std::vector<std::byte> out(10);
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(reader->read_blob("k", 0, out));
    EXPECT_EQ(out, bytes);
    EXPECT_EQ(reader->get("a").value_or("?"), "1");
    EXPECT_EQ(reader->get("b").error().code(), Code::not_found);
    EXPECT_EQ(reader->get("large").value_or("?"), std::string(10'000, 'x'));
    std::size_t records = 0;
    EXPECT_TRUE(reader->scan("", [&](std::string_view, std::string_view) { return ++records > 0; }));
    EXPECT_EQ(records, 2u);
    std::vector<std::byte> none(10);
    EXPECT_EQ(reader->read_blob("lost", 0, none).error().code(), Code::corrupt);
  }

  remove_objects();  // As if the grace were over.
  EXPECT_TRUE(is_refused(reader->read_blob("k", 0, out), Code::unavailable, "open it again"));
  EXPECT_EQ(reader->get("large").error().code(), Code::unavailable);
}

TEST_F(BucketTest, UploadsWithoutANameGoWithTheNextCollections) {
  // Somebody uploaded under a token that the log does not know, or knows no more.
  const std::string key = log::object_key({.token = {.high = 1, .low = 2}, .draw = 3});
  const std::vector<std::byte> bytes(10, std::byte{7});
  BucketOptions options;
  options.log.grace_s = 0;
  options.log.ask_time = std::chrono::milliseconds(20);
  const auto owner = open(options);
  ASSERT_NE(owner, nullptr);
  ASSERT_EQ(store_->create(key, bytes, deadline_in(std::chrono::minutes(1))).outcome, Created::created);
  ASSERT_TRUE(owner->apply({Backend::Put{"large", std::string(10'000, 'x')}}));
  EXPECT_EQ(objects("objects/"), 2u);
  // One collection condemns it; it goes after the grace, behind.
  const Time deadline = deadline_in(std::chrono::minutes(1));
  while (objects("objects/") > 1 && system_clock().now() < deadline) ASSERT_TRUE(owner->reclaim());
  EXPECT_EQ(objects("objects/"), 1u);
  EXPECT_EQ(owner->get("large").value_or("?"), std::string(10'000, 'x'));
}

TEST_F(BucketTest, ARecordThatSaysThatItIsHugeIsDamage) {
  {
    auto log = log::LogStore::open(std::make_shared<bucket::ObjectStoreCaller>(store_), {});
    ASSERT_TRUE(log);
    ASSERT_TRUE((*log)->claim(deadline_in(std::chrono::minutes(1))));
    const auto object = (*log)->draw_object();
    ASSERT_TRUE(object);
    const log::Place place{.object = *object, .offset = 0, .bytes = log::kPlaceBytesMax, .digest = {}};
    log::Batch batch;
    batch.changes.push_back({.key = "rhuge", .value = log::Value{.inlined = "", .places = {}}});
    batch.changes[0].value->places.assign(100'000, place);
    ASSERT_TRUE((*log)->apply(batch, deadline_in(std::chrono::minutes(1))));
  }
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  EXPECT_TRUE(is_refused(owner->get("huge"), Code::corrupt));
  const Status put = owner->apply({Backend::Put{"large", std::string((std::size_t{64} << 20) + 1, 'x')}});
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code(), Code::out_of_space) << "nobody could read it";
}

TEST_F(BucketTest, AForeignObjectInTheLogIsDamage) {
  ASSERT_NE(open(), nullptr);
  const auto page = store_->list(log::kRecordPrefix, "", 1, deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(page);
  const auto last = log::parse_record_key(page->objects.front().key);
  ASSERT_TRUE(last);
  const std::vector<std::byte> foreign(log::kRecordBytesMax + 1, std::byte{7});
  ASSERT_EQ(store_->create(log::record_key(*last + 1), foreign, deadline_in(std::chrono::minutes(1))).outcome,
            Created::created);
  EXPECT_EQ(open_bucket_backend(store_, {}).error().code(), Code::corrupt);
}

TEST_F(BucketTest, ALogOfANewerFormatIsRefusedByName) {
  ASSERT_NE(open(), nullptr);
  const auto page = store_->list(log::kRecordPrefix, "", 1, deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(page);
  const auto last = log::parse_record_key(page->objects.front().key);
  ASSERT_TRUE(last);
  flatbuffers::FlatBufferBuilder builder;
  const stored::LogId writer(1, 2);
  stored::LogRecordBuilder record(builder);
  record.add_format(log::kLogFormat + 1);
  record.add_number(*last + 1);
  record.add_writer(&writer);
  builder.Finish(record.Finish());
  const std::string newer = log::sealed(builder);
  ASSERT_EQ(store_
                ->create(log::record_key(*last + 1), bytes_of(newer.data(), newer.size()),
                         deadline_in(std::chrono::minutes(1)))
                .outcome,
            Created::created);
  EXPECT_TRUE(
      is_refused(open_bucket_backend(store_, {}), Code::unsupported, "has format 2; this Freshet reads format 1"));
}

TEST_F(BucketTest, ARepositoryRestsThere) {
  for (int round = 0; round < 2; ++round) {
    auto opened = Repository::open(open(), {});
    ASSERT_TRUE(opened) << opened.error().message();
    EXPECT_EQ((*opened)->stat()->versions, 0u);
  }
}

TEST_F(BucketTest, AnOwnerThatWasReplacedTellsNoNamesFromItsMemory) {
  const auto gate = std::make_shared<GatedStore>(store_);
  BucketOptions options;
  options.log.answers = std::chrono::seconds(2);
  options.log.challenge = std::chrono::seconds(3);
  options.log.look = std::chrono::milliseconds(20);
  auto old = open_or_die(open_bucket_backend(gate, options).value());
  std::mt19937_64 random(7);
  const TestVersion version = make_version("net", test_id(1), test_architecture({4, 8}), nullptr, {}, random);
  ASSERT_TRUE(put(*old, version));
  ASSERT_EQ(old->latest("net").value_or(0), 1u);

  gate->is_open = false;
  options.log.self.address = "tcp://new:1";
  auto next = open_or_die(open(options));
  ASSERT_TRUE(put(*next, make_version("net", test_id(2), test_architecture({4, 8}), nullptr, {}, random)));

  const MatchQuery query{.graph = MatchGraph::of(*version.manifest.architecture)};
  const auto refuses_all = [&] {
    EXPECT_EQ(old->latest("net").error().code(), Code::unavailable);
    EXPECT_EQ(old->latest("other").error().code(), Code::unavailable) << "by now it may be there";
    EXPECT_EQ(old->find(test_id(1)).error().code(), Code::unavailable);
    EXPECT_EQ(old->find(test_id(2)).error().code(), Code::unavailable);
    EXPECT_EQ(old->models().error().code(), Code::unavailable);
    EXPECT_EQ(old->versions("net").error().code(), Code::unavailable);
    EXPECT_EQ(old->get({.model = "net", .number = 2}).error().code(), Code::unavailable);
    EXPECT_EQ(old->lineage({.model = "net", .number = 1}).error().code(), Code::unavailable);
    EXPECT_EQ(old->descendants({.model = "net", .number = 2}).error().code(), Code::unavailable);
    EXPECT_EQ(old->mrca({.model = "net", .number = 1}, {.model = "net", .number = 1}).error().code(),
              Code::unavailable);
    EXPECT_EQ(old->match(query).error().code(), Code::unavailable);
  };
  refuses_all();
  gate->is_open = true;  // It sees that it was replaced.
  refuses_all();
  EXPECT_EQ(next->latest("net").value_or(0), 2u);
}

TEST_F(BucketTest, AMemberTakesOverFromAnOwnerThatEnds) {
  BucketOptions options;
  options.log.self = {.id = {}, .address = "tcp://old:1", .public_key = "key"};
  auto owner = open(options);
  ASSERT_NE(owner, nullptr);
  ASSERT_TRUE(owner->apply({Backend::Put{"a", "1"}}));
  const auto standby = BucketMember::open(store_, {});
  ASSERT_TRUE(standby);
  ASSERT_TRUE((*standby)->owner());
  EXPECT_EQ((*standby)->owner()->address, "tcp://old:1");
  EXPECT_EQ((*standby)->owner()->public_key, "key");
  EXPECT_EQ((*standby)->own(deadline_in(std::chrono::minutes(1))).error().code(), Code::unavailable);
  EXPECT_FALSE((*standby)->owns());
  owner.reset();
  const auto backend = (*standby)->own(deadline_in(std::chrono::minutes(1)));
  ASSERT_TRUE(backend) << backend.error().message();
  EXPECT_TRUE((*standby)->owns());
  EXPECT_EQ((*backend)->get("a").value_or("?"), "1");
}

TEST_F(BucketTest, PutsThatWaitTogetherShareRecords) {
  constexpr int kPutters = 16;
  constexpr int kPutsOfOne = 8;
  // The store takes a while, so that the others' puts wait meanwhile.
  store_->set_faults(
      {.delay_max = std::chrono::milliseconds(4), .on_delay = [](Duration by) { std::this_thread::sleep_for(by); }});
  const auto owner = open();
  ASSERT_NE(owner, nullptr);
  const std::size_t before = objects("log/");
  {
    std::vector<std::jthread> putters;
    for (int i = 0; i < kPutters; ++i) {
      putters.emplace_back([&owner, i] {
        for (int j = 0; j < kPutsOfOne; ++j) {
          EXPECT_TRUE(owner->apply({Backend::Put{format("{}/{}", i, j), "1"}}));
        }
      });
    }
  }
  const std::size_t records = objects("log/") - before;
  EXPECT_LE(records, static_cast<std::size_t>(kPutters * kPutsOfOne / 4)) << "of 128 puts";
}

}  // namespace
}  // namespace freshet
