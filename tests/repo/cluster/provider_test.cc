// SPDX-License-Identifier: Apache-2.0
/// What one provider of several does for the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "repo/registrar/registrar_records.h"
#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

class ProviderOperations : public ::testing::Test {
 protected:
  // A child at another provider than its ancestor's: the first two tensors stay elsewhere.
  TestVersion child() {
    TestVersion root = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
    TestVersion version = make_version("net", test_id(2), architecture_, &root, {2}, random_);
    version.manifest.name.number = 7;
    return version;
  }

  std::mt19937_64 random_{20261121};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({100, 200, 300});
  std::unique_ptr<ProviderRepository> repository_ = open_or_die(make_memory_backend());
  const Placed placed_{
      .placement = 3, .attempt = 11, .elsewhere = {0, 1}, .moved = {{.writer = test_id(1), .provider = "other"}}};
};

TEST_F(ProviderOperations, WhatIsElsewhereIsNotAskedFor) {
  const TestVersion version = child();
  EXPECT_THAT(repository_->wanted(version.manifest, {.placed = placed_}).value(), ::testing::ElementsAre(2));
  std::vector<std::uint32_t> asked;
  const auto bytes_of = [&](std::uint32_t tensor) -> Result<Bytes> {
    asked.push_back(tensor);
    return Bytes(version.bytes[tensor]);
  };
  const auto name = repository_->put(version.manifest, bytes_of, {.placed = placed_});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(to_string(*name), "net@7");
  EXPECT_THAT(asked, ::testing::ElementsAre(2));
  EXPECT_EQ(repository_->get(*name)->placed, placed_);
  EXPECT_EQ(repository_->get(*name)->inherited_bytes, 300u);
  const auto report = repository_->verify(std::nullopt, {});
  EXPECT_TRUE(report->corrupt.empty());
  EXPECT_EQ(report->checked_bytes, 300u);
}

TEST_F(ProviderOperations, ANumberCountsAsItStands) {
  TestVersion version = child();
  ASSERT_TRUE(put(*repository_, version, {.placed = placed_}));
  TestVersion earlier = make_version("net", test_id(3), architecture_, nullptr, {}, random_);
  earlier.manifest.name.number = 5;
  EXPECT_EQ(put(*repository_, earlier, {.placed = Placed{.placement = 1}})->number, 5u);
  TestVersion same = make_version("net", test_id(4), architecture_, nullptr, {}, random_);
  same.manifest.name.number = 5;
  EXPECT_EQ(put(*repository_, same, {.placed = Placed{.placement = 1}}).error().code(), Code::already_exists);
}

TEST_F(ProviderOperations, RefusesWhatCannotBeElsewhere) {
  const TestVersion version = child();
  for (const Placed& bad : {Placed{}, Placed{.placement = 1, .elsewhere = {2}},
                            Placed{.placement = 1, .elsewhere = {3}}, Placed{.placement = 1, .elsewhere = {1, 0}},
                            Placed{.placement = 1, .moved = {{.writer = test_id(1), .provider = ""}}}}) {
    EXPECT_EQ(put(*repository_, version, {.placed = bad}).error().code(), Code::invalid_argument);
  }
}

TEST_F(ProviderOperations, APutIsSettledOneWayOrTheOther) {
  const TestVersion version = child();
  EXPECT_FALSE(repository_->settle_put(version.manifest.id, placed_.attempt).value());
  EXPECT_EQ(put(*repository_, version, {.placed = placed_}).error().code(), Code::failed_precondition);
  EXPECT_FALSE(repository_->find(version.manifest.id).value());
  Placed again = placed_;
  again.attempt = 12;
  ASSERT_TRUE(put(*repository_, version, {.placed = again}));
  EXPECT_TRUE(repository_->settle_put(version.manifest.id, 12).value());
  EXPECT_FALSE(repository_->settle_put(version.manifest.id, 11).value());
  EXPECT_TRUE(repository_->get({.model = "net"})) << "settling an attempt that is there takes nothing away";
}

TEST_F(ProviderOperations, SegmentsAreReadByName) {
  const TestVersion root = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  ASSERT_TRUE(put(*repository_, root));
  std::vector<std::byte> out(200);
  const SegmentName name{.writer = test_id(1), .tensor = 1};
  const std::vector<ProviderRepository::SegmentRead> reads{
      {.segment = name, .digest = root.manifest.digests[1], .out = out}};
  ASSERT_TRUE(repository_->read_segments(reads));
  EXPECT_EQ(out, root.bytes[1]);
  const std::vector<ProviderRepository::SegmentRead> wrong{
      {.segment = name, .digest = root.manifest.digests[0], .out = out}};
  EXPECT_EQ(repository_->read_segments(wrong).error().code(), Code::corrupt);
  const std::vector<ProviderRepository::SegmentRead> absent{{.segment = {.writer = test_id(9)}, .out = out}};
  EXPECT_EQ(repository_->read_segments(absent).error().code(), Code::not_found);
}

TEST_F(ProviderOperations, WhatSomebodyElsewhereNamesKeepsWhatItIsADifferenceFrom) {
  constexpr std::size_t kBytes = 65536;
  TestVersion base = make_version("net", test_id(1), test_architecture({kBytes}), nullptr, {}, random_);
  base.manifest.name = put(*repository_, base).value();
  TestVersion tuned = make_version("net", test_id(2), base.manifest.architecture, &base, {0}, random_);
  tuned.bytes[0] = base.bytes[0];
  for (std::size_t i = 0; i < kBytes; i += 500) tuned.bytes[0][i] ^= std::byte{1};
  tuned.manifest.digests[0] = digest_of(tuned.bytes[0]);
  tuned.manifest.name = put(*repository_, tuned, {.deltas = true}).value();
  const SegmentName segment{.writer = test_id(2), .tensor = 0};
  ASSERT_TRUE(repository_->add_referrer({.version = test_id(3), .attempt = 1, .home = "p", .segments = {segment}}));
  ASSERT_TRUE(repository_->retire(tuned.manifest.name, {}));
  ASSERT_TRUE(repository_->retire(base.manifest.name, {}));
  EXPECT_EQ(repository_->gc({}, {})->live_bytes, 2 * kBytes) << "it is kept as a difference";
  std::vector<std::byte> out(kBytes);
  const std::vector<ProviderRepository::SegmentRead> read{
      {.segment = segment, .digest = tuned.manifest.digests[0], .out = out}};
  const Status status = repository_->read_segments(read);
  EXPECT_TRUE(status) << status.error().message();
  ASSERT_TRUE(repository_->drop_referrer(test_id(3), 1));
  EXPECT_EQ(repository_->gc({}, {})->live_bytes, 0u);
}

TEST_F(ProviderOperations, SharedRecordsChangeAllOrNothing) {
  EXPECT_EQ(repository_->shared_record("a")->value, std::nullopt);
  const std::vector<SharedRecord> nothing{{.key = "a"}, {.key = "b"}};
  const std::vector<SharedRecord> both{{.key = "a", .value = "1"}, {.key = "b", .value = ""}};
  ASSERT_TRUE(repository_->change_shared_records(nothing, both));
  EXPECT_EQ(repository_->shared_record("a")->value, "1");
  EXPECT_EQ(repository_->shared_record("b")->value, "");
  EXPECT_EQ(repository_->change_shared_records(nothing, both).error().code(), Code::failed_precondition);
  const std::vector<SharedRecord> stale{{.key = "a", .value = "1"}, {.key = "b", .value = "x"}};
  EXPECT_EQ(repository_->change_shared_records(stale, nothing).error().code(), Code::failed_precondition);
  EXPECT_EQ(repository_->shared_record("a")->value, "1");
  ASSERT_TRUE(repository_->change_shared_records(both, nothing));
  EXPECT_EQ(repository_->shared_record("b")->value, std::nullopt);
  const std::vector<SharedRecord> bad{{.key = std::string(300, 'k')}};
  EXPECT_EQ(repository_->change_shared_records({}, bad).error().code(), Code::invalid_argument);
}

TEST_F(ProviderOperations, NoSharedNumberIsAboveTheGreatest) {
  const SharedRecord last = number_record("net", kVersionNumberMax);
  EXPECT_TRUE(repository_->change_shared_records({}, std::span(&last, 1)));
  const SharedRecord above = number_record("net", kVersionNumberMax + 1);
  EXPECT_TRUE(is_refused(repository_->change_shared_records({}, std::span(&above, 1)), Code::invalid_argument));
}

TEST_F(ProviderOperations, SharedRecordsOfOneCallHaveALimit) {
  std::vector<SharedRecord> records;
  for (char key = 'a'; key < 'q'; ++key) {
    records.push_back({.key = {key}, .value = std::string(kSharedValueBytesMax, 'x')});
  }
  EXPECT_TRUE(is_refused(repository_->change_shared_records({}, records), Code::invalid_argument))
      << "with their keys they are too long";
  records.pop_back();
  EXPECT_TRUE(repository_->change_shared_records({}, records));
}

TEST_F(ProviderOperations, SharedRecordsAreListedByTheirKeys) {
  const std::string half(kSharedValueBytesMax / 2, 'x');
  std::vector<SharedRecord> records;
  for (const char* key : {"m", "n/", "n/a", "n/aa", "n/b", "n/\xff", "o"})
    records.push_back({.key = key, .value = half});
  ASSERT_TRUE(repository_->change_shared_records({}, records));
  std::vector<SharedRecord> listed;
  std::size_t pages = 0;
  for (std::string after;; ++pages) {
    const auto page = repository_->shared_records("n/", after);
    ASSERT_TRUE(page) << page.error().message();
    if (page->empty()) break;
    listed.insert(listed.end(), page->begin(), page->end());
    after = page->back().key;
  }
  EXPECT_GT(pages, 2U);
  EXPECT_EQ(listed, std::vector(records.begin() + 1, records.end() - 1));
  EXPECT_THAT(repository_->shared_records("p", "").value(), testing::IsEmpty());
  EXPECT_EQ(repository_->shared_records("", "").value().front().key, "m");
  EXPECT_EQ(repository_->shared_records(std::string(300, 'k'), "").error().code(), Code::invalid_argument);
  EXPECT_EQ(repository_->shared_records("", std::string(300, 'k')).error().code(), Code::invalid_argument);
}

TEST_F(ProviderOperations, SurviveAnotherOpening) {
  char folder[] = "/tmp/freshet-provider-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const TestVersion version = child();
  const auto open = [&] { return open_or_die(open_rocks_backend({.folder = folder}).value()); };
  {
    const auto repository = open();
    ASSERT_TRUE(put(*repository, version, {.placed = placed_}));
    const std::vector<SharedRecord> change{{.key = "a", .value = "1"}};
    ASSERT_TRUE(repository->change_shared_records({}, change));
    ASSERT_FALSE(repository->settle_put(test_id(5), 1).value());
  }
  {
    const auto repository = open();
    EXPECT_EQ(repository->get({.model = "net"})->placed, placed_);
    EXPECT_EQ(repository->shared_record("a")->value, "1");
    TestVersion given_up = make_version("net", test_id(5), architecture_, nullptr, {}, random_);
    given_up.manifest.name.number = 9;
    EXPECT_EQ(put(*repository, given_up, {.placed = Placed{.placement = 1, .attempt = 1}}).error().code(),
              Code::failed_precondition);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace freshet
