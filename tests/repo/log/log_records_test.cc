// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "repo/log/log_record.h"
#include "repo/log/log_state.h"
#include "repo/log/snapshot.h"
#include "tests/support/refused.h"

namespace freshet::log {
namespace {

constexpr LogId kOwner{.high = 1, .low = 2};
constexpr LogId kUploads{.high = 3, .low = 4};
constexpr ObjectName kUploaded{.token = kUploads, .draw = 5};

Record ownership() {
  Batch grants;
  grants.grants.push_back({.token = kUploads, .life_s = 60});
  return {.number = 1,
          .writer = kOwner,
          .sequence = 1,
          .kind = RecordKind::ownership,
          .address = "tcp://a:1",
          .public_key = "key",
          .batches = {grants},
          .emptied = false,
          .snapshot = 0};
}

Record record_of(std::uint64_t number, const Batch& batch) {
  return {.number = number,
          .writer = kOwner,
          .sequence = number,
          .kind = RecordKind::batches,
          .address = "",
          .public_key = "",
          .batches = {batch},
          .emptied = false,
          .snapshot = 0};
}

Batch naming(const std::string& key) {
  Batch batch;
  const Place place{.object = kUploaded, .offset = 1, .bytes = 5, .digest = {.low = 6, .high = 7}};
  batch.changes.push_back({.key = key, .value = Value{.inlined = "", .places = {place}}});
  batch.changes.push_back({.key = "small", .value = Value{.inlined = std::string("a\0b", 3), .places = {}}});
  return batch;
}

Batch erasing(const std::string& key) {
  Batch batch;
  batch.changes.push_back({.key = key, .value = std::nullopt});
  batch.condemned.push_back(kUploaded);
  return batch;
}

TEST(LogRecords, ARecordIsReadAsItWasWritten) {
  Batch rest = erasing("k");
  rest.ends.push_back(kUploads);
  rest.forgotten.push_back({.token = kOwner, .draw = 9});
  Record record = record_of(7, naming("k"));
  record.batches.push_back(rest);
  const auto read = decode_record(encode(record), 7);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, record);
}

TEST(LogRecords, NoDamageGoesUnnoticed) {
  const std::string good = encode(record_of(7, naming("k")));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_TRUE(is_refused(decode_record(bad, 7), Code::corrupt)) << "byte " << i;
    EXPECT_FALSE(decode_record(std::string_view(good).substr(0, i), 7)) << i << " bytes";
  }
  EXPECT_EQ(decode_record(good, 8).error().code(), Code::corrupt);  // Another record under this name.
  EXPECT_EQ(decode_record("<html>not found</html>", 7).error().code(), Code::corrupt);
}

TEST(LogRecords, NamesAreReadBackAndSortNewestFirst) {
  EXPECT_LT(record_key(10), record_key(9));
  EXPECT_LT(snapshot_key(1000), snapshot_key(999));
  EXPECT_EQ(parse_record_key(record_key(77)), 77);
  EXPECT_EQ(parse_snapshot_key(snapshot_key(77)), 77);
  EXPECT_EQ(parse_object_key(object_key(kUploaded)), kUploaded);
  for (const char* foreign : {"log/", "log/00000000000000zz", "log/1", "objects/x", "snapshots/0000000000000001x"}) {
    EXPECT_FALSE(parse_record_key(foreign)) << foreign;
    EXPECT_FALSE(parse_snapshot_key(foreign)) << foreign;
    EXPECT_FALSE(parse_object_key(foreign)) << foreign;
  }
}

TEST(LogRecords, ASnapshotHasTheWholeState) {
  LogState state;
  ASSERT_TRUE(state.apply(ownership()));
  ASSERT_TRUE(state.apply(record_of(2, naming("k"))));
  for (std::uint64_t i = 3; i < 60; ++i) {
    Batch batch;
    batch.changes.push_back({.key = "key " + std::to_string(i), .value = Value{.inlined = "value", .places = {}}});
    ASSERT_TRUE(state.apply(record_of(i, batch)));
  }
  state.stamp(1234, 40);
  const auto snapshot = make_snapshot(state, kOwner, 1, 200);
  ASSERT_TRUE(snapshot);
  EXPECT_GT(snapshot->parts.size(), 5U);
  const auto head = decode_snapshot_head(encode(snapshot->head), state.position());
  ASSERT_TRUE(head) << head.error().message();
  const auto loaded = load_snapshot(*head, snapshot->parts);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->position(), state.position());
  EXPECT_EQ(loaded->owner(), state.owner());
  EXPECT_EQ(loaded->values(), state.values());
  EXPECT_EQ(loaded->tokens(), state.tokens());
  EXPECT_EQ(loaded->names_of(kUploaded), 1U);

  std::vector<std::string> swapped = snapshot->parts;
  std::swap(swapped[0], swapped[1]);
  EXPECT_EQ(load_snapshot(*head, swapped).error().code(), Code::corrupt);
  swapped = snapshot->parts;
  swapped.pop_back();
  EXPECT_EQ(load_snapshot(*head, swapped).error().code(), Code::corrupt);
  EXPECT_EQ(decode_snapshot_head(encode(snapshot->head), 58).error().code(), Code::corrupt);
}

TEST(LogRecords, ASnapshotOfTooManyBytesIsRefusedBeforeTheyAreRead) {
  SnapshotHead head{.position = 5,
                    .writer = kOwner,
                    .attempt = 1,
                    .owner = {.id = kOwner, .address = "", .public_key = ""},
                    .owned_since = 1,
                    .emptied_through = 0,
                    .previous = 0,
                    .parts = {}};
  const SnapshotHead::Part part{.digest = {}, .bytes = kSnapshotPartBytesMax};
  head.parts.assign(kSnapshotBytesMax / kSnapshotPartBytesMax, part);
  EXPECT_TRUE(decode_snapshot_head(encode(head), 5));
  head.parts.push_back(part);
  EXPECT_EQ(decode_snapshot_head(encode(head), 5).error().code(), Code::corrupt);
  head.parts.clear();
  head.previous = 5;
  EXPECT_EQ(decode_snapshot_head(encode(head), 5).error().code(), Code::corrupt) << "a snapshot before itself";
}

// Each of these can only be the work of a member that breaks the protocol, or of somebody else.
TEST(LogRecords, AStateRefusesWhatMayNotFollow) {
  LogState begun;
  ASSERT_TRUE(begun.apply(ownership()));
  const auto refused = [&begun](const Record& record) {
    LogState state = begun;
    const Status status = state.apply(record);
    return !status && status.error().code() == Code::corrupt;
  };
  EXPECT_FALSE(refused(record_of(2, naming("k"))));
  EXPECT_TRUE(refused(record_of(3, naming("k")))) << "a hole";
  Record other = record_of(2, naming("k"));
  other.writer = {.high = 8, .low = 8};
  EXPECT_TRUE(refused(other)) << "of a member that does not own the log";
  other = ownership();
  other.number = 2;
  other.writer = {.high = 8, .low = 8};
  EXPECT_TRUE(refused(other)) << "without a challenge";
  EXPECT_TRUE(refused(record_of(2, erasing("k")))) << "condemns what its uploader may still name";

  ASSERT_TRUE(begun.apply(record_of(2, naming("k"))));
  Batch condemns;
  condemns.condemned.push_back(kUploaded);
  EXPECT_TRUE(refused(record_of(3, condemns))) << "condemns what a value names";
  ASSERT_TRUE(begun.apply(record_of(3, erasing("k"))));
  EXPECT_TRUE(refused(record_of(4, naming("k")))) << "names what is condemned";
  Batch forgets;
  forgets.forgotten.push_back(kUploaded);
  EXPECT_TRUE(refused(record_of(4, forgets))) << "forgets, and the token lives";
  forgets.ends.push_back(kUploads);
  EXPECT_FALSE(refused(record_of(4, forgets)));
  ASSERT_TRUE(begun.apply(record_of(4, forgets)));
  EXPECT_TRUE(refused(record_of(5, naming("k")))) << "names what is forgotten";
}

}  // namespace
}  // namespace freshet::log
