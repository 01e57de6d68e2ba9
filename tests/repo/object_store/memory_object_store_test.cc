// SPDX-License-Identifier: Apache-2.0
/// The memory store's faults, and what the probe of exclusion says of stores with faults.

#include "repo/object_store/memory_object_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "repo/object_store/exclusion.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

constexpr unsigned kAlways = 1000;
Time in_time() { return deadline_in(std::chrono::minutes(1)); }
Bytes as_bytes(std::string_view text) { return bytes_of(text.data(), text.size()); }

TEST(MemoryObjectStore, ALateWriteComesAfterItWasReadBack) {
  MemoryObjectStore store({.late = kAlways, .calls_late_max = 4});
  EXPECT_EQ(store.create("log/1", as_bytes("late"), in_time()).outcome, Created::unsettled);
  EXPECT_EQ(store.late_writes(), 1u);
  bool was_there = false;
  for (int call = 0; call < 4; ++call) was_there = store.head("log/1", in_time()).has_value();
  EXPECT_TRUE(was_there) << "it comes within four calls";
  EXPECT_EQ(store.late_writes(), 0u);
  EXPECT_EQ(store.get("log/1", 10, in_time())->bytes, "late");
}

TEST(MemoryObjectStore, ALateCreationLosesToAnEarlierOne) {
  MemoryObjectStore store({.late = kAlways, .calls_late_max = 1000});
  ASSERT_EQ(store.create("log/1", as_bytes("sleeper"), in_time()).outcome, Created::unsettled);
  store.set_faults({});
  ASSERT_EQ(store.create("log/1", as_bytes("second"), in_time()).outcome, Created::created);
  store.do_late_writes();
  EXPECT_EQ(store.get("log/1", 10, in_time())->bytes, "second");
}

TEST(MemoryObjectStore, APutThatIsDoneTwiceComesBack) {
  MemoryObjectStore store({.twice = kAlways, .calls_late_max = 1000});
  ASSERT_TRUE(store.put("a", as_bytes("old"), in_time()));
  store.set_faults({});
  ASSERT_TRUE(store.remove("a", in_time()));
  ASSERT_EQ(store.late_writes(), 1u);
  store.do_late_writes();
  EXPECT_EQ(store.get("a", 10, in_time())->bytes, "old") << "a removed object that came back";
}

TEST(MemoryObjectStore, LostAnswersAndLostRequestsLookTheSame) {
  MemoryObjectStore store({.lost_answer = kAlways});
  EXPECT_EQ(store.create("a", as_bytes("x"), in_time()).outcome, Created::unsettled);
  store.set_faults({.lost_request = kAlways});
  EXPECT_EQ(store.create("b", as_bytes("x"), in_time()).outcome, Created::unsettled);
  store.set_faults({.busy = kAlways});
  EXPECT_EQ(store.create("c", as_bytes("x"), in_time()).outcome, Created::refused);
  store.set_faults({});
  EXPECT_TRUE(store.head("a", in_time()));
  EXPECT_EQ(store.head("b", in_time()).error().code(), Code::not_found);
  EXPECT_EQ(store.head("c", in_time()).error().code(), Code::not_found);
}

TEST(MemoryObjectStore, OneSeedIsOneStory) {
  const auto story_of = [](std::uint64_t seed) {
    ManualClock clock;
    MemoryObjectStore store({.seed = seed,
                             .busy = 50,
                             .lost_request = 100,
                             .lost_answer = 100,
                             .late = 200,
                             .twice = 100,
                             .delay_max = std::chrono::seconds(3),
                             .on_delay = [&](Duration by) { clock.advance(by); }},
                            clock);
    std::string story;
    for (int i = 0; i < 200; ++i) {
      const std::string key = "log/" + std::to_string(i % 20);
      story += name_of(store.create(key, as_bytes(std::to_string(i)), in_time()).outcome);
    }
    store.set_faults({});
    const ObjectPage all = *store.list("", "", kListKeysMax, in_time());
    for (const ListedObject& one : all.objects) {
      story += one.key + "=" + store.get(one.key, 10, in_time())->bytes + "@" + std::to_string(one.modified_unix_s);
    }
    return story;
  };
  EXPECT_EQ(story_of(1), story_of(1));
  EXPECT_NE(story_of(1), story_of(2));
}

TEST(MemoryObjectStore, ASignedRequestEnds) {
  ManualClock clock;
  MemoryObjectStore store({}, clock);
  ASSERT_EQ(store.create("a", as_bytes("x"), in_time()).outcome, Created::created);
  const auto get = store.sign_get("a", std::chrono::seconds(10));
  const auto create = store.sign_create("b", 1, crc32c_of(as_bytes("x")), std::chrono::seconds(10));
  ASSERT_TRUE(get && create);
  std::byte out{};
  EXPECT_TRUE(store.read(*get, 0, MutableBytes(&out, 1), in_time()));
  clock.advance(std::chrono::seconds(11));
  EXPECT_EQ(store.read(*get, 0, MutableBytes(&out, 1), in_time()).error().code(), Code::failed_precondition);
  EXPECT_EQ(store.create(*create, as_bytes("x"), in_time()).outcome, Created::refused);
}

TEST(ExclusionProbe, RefusesAStoreThatLetsTwoWin) {
  MemoryObjectStore store({.exclusive = false});
  EXPECT_TRUE(is_refused(check_exclusion(store, "probe", in_time()), Code::unsupported, "do not exclude each other"));
  EXPECT_TRUE(store.list("", "", 1, in_time())->objects.empty()) << "it leaves nothing behind";
}

TEST(ExclusionProbe, DoesNotBlameAStoreThatIsBusy) {
  MemoryObjectStore busy({.busy = kAlways});
  EXPECT_EQ(check_exclusion(busy, "probe", in_time()).error().code(), Code::unavailable);
  MemoryObjectStore lost({.lost_answer = kAlways});
  EXPECT_EQ(check_exclusion(lost, "probe", in_time()).error().code(), Code::timed_out);
}

TEST(ObjectChecksum, IsTheOneOfTheStandard) {
  // RFC 3720, B.4: 32 bytes of zeros, and of ones.
  const std::string zeros(32, '\0');
  const std::string ones(32, '\xff');
  EXPECT_EQ(crc32c_of(as_bytes(zeros)), 0x8a9136aau);
  EXPECT_EQ(crc32c_of(as_bytes(ones)), 0x62a8ab43u);
  EXPECT_EQ(crc32c_of(as_bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c_of({}), 0u);
}

}  // namespace
}  // namespace freshet
