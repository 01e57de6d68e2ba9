// SPDX-License-Identifier: Apache-2.0
/// Versions: stored, named, read, refused.

#include "tests/conformance/repository_conformance.h"

namespace freshet {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RepositoryConformance);

TEST_P(RepositoryConformance, ATensorMayHaveMoreThanOnePartOfADigest) {
  architecture_ = test_architecture({7, kDigestPartBytes + 1});
  const TestVersion first = stored(version("net"));
  ASSERT_NE(first.manifest.digests[1], plain_xxh3_of(first.bytes[1]));
  expect_bytes(first);
  expect_bytes(stored(version("net", &first, {0})));
  const auto record = repository().get(net(1));
  ASSERT_TRUE(record) << record.error().message();
  std::vector<std::byte> out(9);
  ASSERT_TRUE(repository().read_range(*record, 1, kDigestPartBytes - 8, out));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), first.bytes[1].end() - 9));
  expect_sound();
}

TEST_P(RepositoryConformance, WhatWasPutIsThere) {
  TestVersion first = version("net");
  first.manifest.step = 12;
  first.manifest.metrics = {{"loss", 0.5}};
  first.manifest.tags = {{"who", "test"}};
  first = stored(std::move(first), {.quality = 0.75});
  EXPECT_EQ(to_string(first.manifest.name), "net@1");
  const auto record = repository().get({.model = "net"});
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(record->manifest.name, first.manifest.name);
  EXPECT_EQ(record->manifest.id, first.manifest.id);
  EXPECT_EQ(record->manifest.step, 12u);
  EXPECT_EQ(record->manifest.metrics, first.manifest.metrics);
  EXPECT_EQ(record->manifest.tags, first.manifest.tags);
  EXPECT_EQ(record->manifest.owners, first.manifest.owners);
  EXPECT_EQ(record->manifest.digests, first.manifest.digests);
  EXPECT_EQ(record->manifest.architecture->digest(), architecture_->digest());
  EXPECT_EQ(record->quality, 0.75);
  EXPECT_TRUE(record->has_weights);
  EXPECT_EQ(record->own_bytes, 91'007u);
  EXPECT_EQ(record->inherited_bytes, 0u);
  expect_bytes(first);
  EXPECT_EQ(repository().find(first.manifest.id).value(), net(1));
  EXPECT_EQ(repository().find(test_id(900)).value(), std::nullopt);
  EXPECT_EQ(repository().latest("net").value(), 1u);
  EXPECT_EQ(repository().models().value(), std::vector<std::string>{"net"});
  expect_sound();
}

TEST_P(RepositoryConformance, AModelsRowIsOfItsNewestVersionThatIsNotRetired) {
  const TestVersion first = stored(version("net"), {.quality = 0.5});
  const TestVersion second = stored(version("net", &first, {0}));
  stored(version("other"), {.quality = 0.25});
  const auto rows = repository().model_rows();
  ASSERT_TRUE(rows) << rows.error().message();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ(rows->at(0), (ModelRow{.model = "net", .versions = 2, .newest = 2, .quality = {}}));
  EXPECT_EQ(rows->at(1), (ModelRow{.model = "other", .versions = 1, .newest = 1, .quality = 0.25}));
  ASSERT_TRUE(repository().retire(second.manifest.name, {}));
  ASSERT_TRUE(repository().retire({.model = "other", .number = 1}, {}));
  const std::vector<ModelRow> left = {{.model = "net", .versions = 1, .newest = 1, .quality = 0.5}};
  EXPECT_EQ(repository().model_rows().value(), left);
}

TEST_P(RepositoryConformance, OnlyWhatIsNotStoredIsAskedFor) {
  const TestVersion first = stored(version("net"));
  const TestVersion second = version("net", &first, {1, 3});
  if (provider() != nullptr) {
    EXPECT_EQ(provider()->wanted(second.manifest, {}).value(), (std::vector<std::uint32_t>{1, 3}));
  }
  std::vector<std::uint32_t> asked;
  const auto name = repository().put(second.manifest,
                                     [&](std::uint32_t tensor) -> Result<Bytes> {
                                       asked.push_back(tensor);
                                       return Bytes(second.bytes[tensor]);
                                     },
                                     {});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(read_all(repository(), *name).value(), second.bytes);
  EXPECT_EQ(repository().get(*name)->own_bytes, 70'007u);
  EXPECT_EQ(repository().get(*name)->inherited_bytes, 21'000u);
  const auto stat = repository().stat();
  EXPECT_EQ(stat->models, 1u);
  EXPECT_EQ(stat->versions, 2u);
  EXPECT_EQ(stat->live_tensors, 6u);
  EXPECT_EQ(stat->live_bytes, 91'007u + 70'007u);
  EXPECT_GE(stat->disk_bytes, stat->live_bytes + stat->metadata_bytes);
}

TEST_P(RepositoryConformance, ADigestOfZerosStandsForTheDigestOfTheBytes) {
  architecture_ = test_architecture({70'000, 7, 0, 9'000});
  const auto put_without_digests = [&](TestVersion& whole, Repository::PutOptions options) {
    TestVersion without = whole;
    for (std::size_t tensor = 0; tensor < whole.bytes.size(); ++tensor) {
      whole.manifest.digests[tensor] = digest_of(whole.bytes[tensor]);
      const bool is_own = whole.manifest.owners[tensor].writer == whole.manifest.id;
      without.manifest.digests[tensor] = is_own ? Digest{} : whole.manifest.digests[tensor];
    }
    const auto name = put(repository(), without, std::move(options));
    ASSERT_TRUE(name) << name.error().message();
    EXPECT_EQ(repository().get(*name)->manifest.digests, whole.manifest.digests);
    EXPECT_EQ(read_all(repository(), *name).value(), whole.bytes);
    whole.manifest.name = *name;
  };
  TestVersion first = version("net");
  put_without_digests(first, {});
  for (const bool deltas : {false, true}) {
    TestVersion next = version("net", &first, {0, 3});
    next.bytes[0] = first.bytes[0];
    next.bytes[0][5] ^= std::byte{1};  // Short as a difference.
    put_without_digests(next, {.deltas = deltas});
  }
  expect_sound();
}

TEST_P(RepositoryConformance, ADigestOfZerosIsRefusedWhereItProvesNothing) {
  const TestVersion never = version("net");
  TestVersion adopts = version("net", &never, {0});
  adopts.manifest.digests[3] = {};
  const auto adopted = put(repository(), adopts);
  ASSERT_TRUE(is_refused(adopted, Code::invalid_argument)) << "another version wrote it";
  EXPECT_NE(adopted.error().message().find("layer3.kernel"), std::string::npos) << adopted.error().message();
  // Its own bytes are here already, by a version that inherited them.
  stored(version("net", &never, {0}));
  TestVersion late = never;
  late.manifest.digests[3] = {};
  if (const auto name = put(repository(), late)) {
    EXPECT_EQ(read_all(repository(), *name).value(), never.bytes);
  } else {
    EXPECT_EQ(name.error().code(), Code::invalid_argument) << name.error().message();
  }
  expect_sound();
}

TEST_P(RepositoryConformance, SegmentsOfVersionsThatWereNeverStoredAreAdopted) {
  const TestVersion first = version("net");
  const TestVersion second = version("net", &first, {0});
  const TestVersion third = stored(version("net", &second, {3}));
  expect_bytes(third);
  const auto owners = repository().owners(third.manifest.name);
  ASSERT_TRUE(owners) << owners.error().message();
  ASSERT_EQ(owners->size(), 4u);
  EXPECT_EQ((*owners)[0].owner, VersionName{});
  EXPECT_EQ((*owners)[0].segment.writer, second.manifest.id);
  EXPECT_EQ((*owners)[3].owner, third.manifest.name);
  EXPECT_EQ((*owners)[3].tensor, "layer3.kernel");
  EXPECT_EQ((*owners)[3].bytes, 70'000u);
  expect_sound();
}

TEST_P(RepositoryConformance, PartsAreReadIntoTheCallersMemory) {
  const TestVersion first = stored(version("net"));
  const TestVersion second = stored(version("net", &first, {2}));
  const auto record = repository().get(second.manifest.name);
  ASSERT_TRUE(record);
  std::vector<std::byte> small(7);
  std::vector<std::byte> large(20'000);
  const std::vector<Repository::TensorRead> reads = {{.tensor = 2, .out = large}, {.tensor = 1, .out = small}};
  ASSERT_TRUE(repository().read(*record, reads));
  EXPECT_EQ(small, second.bytes[1]);
  EXPECT_EQ(large, second.bytes[2]);
  for (const std::uint32_t tensor : {0u, 2u}) {
    std::vector<std::byte> part(100);
    ASSERT_TRUE(repository().read_range(*record, tensor, 300, part));
    EXPECT_TRUE(std::equal(part.begin(), part.end(), second.bytes[tensor].begin() + 300));
  }
  const std::vector<Repository::TensorRead> wrong_room = {{.tensor = 0, .out = small}};
  EXPECT_TRUE(is_refused(repository().read(*record, wrong_room), Code::invalid_argument));
  const std::vector<Repository::TensorRead> no_such = {{.tensor = 4, .out = small}};
  EXPECT_TRUE(is_refused(repository().read(*record, no_such), Code::invalid_argument));
}

TEST_P(RepositoryConformance, NumbersGrowAndAreNeverGivenTwice) {
  TestVersion a = version("net");
  a.manifest.name.number = 10;
  EXPECT_EQ(stored(a).manifest.name.number, 10u);
  EXPECT_EQ(stored(version("net", &a, {0})).manifest.name.number, 11u);
  TestVersion late = version("net", &a, {0});
  late.manifest.name.number = 4;
  EXPECT_EQ(stored(late).manifest.name.number, 12u);
  TestVersion huge = version("net", &a, {0});
  huge.manifest.name.number = ~VersionNumber{0};
  EXPECT_TRUE(is_refused(put(repository(), huge), Code::invalid_argument));
  EXPECT_EQ(repository().latest("net").value(), 12u);
  ASSERT_TRUE(repository().retire(net(12), {}));
  EXPECT_EQ(repository().latest("net").value(), 11u);
  EXPECT_EQ(stored(version("net", &a, {0})).manifest.name.number, 13u);
}

TEST_P(RepositoryConformance, ANumberThatIsAskedForLeavesRoom) {
  TestVersion far = version("net");
  far.manifest.name.number = kGivenNumberMax + 1;
  EXPECT_TRUE(is_refused(put(repository(), far), Code::invalid_argument));
  far.manifest.name.number = kGivenNumberMax;
  stored(far);
  EXPECT_EQ(stored(version("net", &far, {0})).manifest.name.number, kGivenNumberMax + 1);
  expect_sound();
}

TEST_P(RepositoryConformance, TheSameVersionTwiceIsRefused) {
  const TestVersion first = stored(version("net"));
  EXPECT_TRUE(is_refused(put(repository(), first), Code::already_exists));
  ASSERT_TRUE(repository().retire(first.manifest.name, {}));
  EXPECT_TRUE(is_refused(put(repository(), first), Code::already_exists));
  EXPECT_EQ(repository().find(first.manifest.id).value(), first.manifest.name) << "its name stays known";
}

TEST_P(RepositoryConformance, WrongBytesLeaveNothing) {
  TestVersion torn = version("net");
  torn.bytes[3][500] ^= std::byte{1};
  EXPECT_TRUE(is_refused(put(repository(), torn), Code::corrupt, "layer3.kernel"));
  torn.bytes[3].pop_back();
  EXPECT_TRUE(is_refused(put(repository(), torn), Code::corrupt));
  EXPECT_TRUE(is_refused(
      repository().put(torn.manifest,
                       [](std::uint32_t) -> Result<Bytes> { return fail(Code::io_error, "the file is gone"); }, {}),
      Code::io_error));
  EXPECT_TRUE(repository().models()->empty());
  EXPECT_EQ(repository().stat()->live_tensors, 0u);
  EXPECT_TRUE(is_refused(repository().get({.model = "net"}), Code::not_found));
  expect_sound();
}

TEST_P(RepositoryConformance, AnInheritedSegmentMustBeTheStoredOne) {
  const TestVersion first = stored(version("net"));
  TestVersion liar = version("net", &first, {2});
  liar.manifest.digests[0].low ^= 1;
  if (several()) {  // Where its bytes are elsewhere, only who reads them can tell.
    const auto name = put(repository(), liar);
    EXPECT_TRUE(!name || is_refused(read_all(repository(), *name), Code::corrupt));
    return;
  }
  EXPECT_TRUE(is_refused(put(repository(), liar), Code::corrupt));
  EXPECT_EQ(repository().versions("net")->size(), 1u);
}

TEST_P(RepositoryConformance, BadManifestsAreRefused) {
  TestVersion bad = version("net");
  bad.manifest.name.model = "../etc";
  EXPECT_TRUE(is_refused(put(repository(), bad), Code::invalid_argument));
  bad = version("net");
  bad.manifest.ancestor = bad.manifest.id;
  EXPECT_TRUE(is_refused(put(repository(), bad), Code::invalid_argument));
  bad = version("net");
  bad.manifest.digests.pop_back();
  EXPECT_TRUE(is_refused(put(repository(), bad), Code::invalid_argument));
  bad = version("net");
  bad.manifest.architecture = nullptr;
  EXPECT_TRUE(is_refused(put(repository(), bad), Code::invalid_argument));
}

TEST_P(RepositoryConformance, AGraphWithoutWeightsIsAModelToo) {
  TestVersion candidate = version("net");
  candidate.manifest.digests.assign(4, Digest{});
  const auto name =
      repository().put(candidate.manifest, [](std::uint32_t) -> Result<Bytes> { return fail(Code::corrupt, "asked"); },
                       {.quality = {}, .has_weights = false});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_FALSE(repository().get(*name)->has_weights);
  EXPECT_EQ(repository().get(*name)->own_bytes, 0u);
  EXPECT_TRUE(is_refused(read_all(repository(), *name), Code::failed_precondition));
  EXPECT_TRUE(repository().contributors(*name)->empty());
  EXPECT_EQ(repository().verify(std::nullopt, {})->checked_bytes, 0u);
}

TEST_P(RepositoryConformance, ATensorWithoutElementsIsOneToo) {
  architecture_ = test_architecture({3, 0});
  const TestVersion first = stored(version("net"));
  const TestVersion second = stored(version("net", &first, {1}));
  expect_bytes(first);
  expect_bytes(second);
  EXPECT_EQ(repository().owners(second.manifest.name)->at(1).owner, second.manifest.name);
  expect_sound();
}

TEST_P(RepositoryConformance, WhatIsNotThereIsNotFound) {
  EXPECT_TRUE(is_refused(repository().get({.model = "net"}), Code::not_found));
  stored(version("net"));
  EXPECT_TRUE(is_refused(repository().get({.model = "nut"}), Code::not_found));
  EXPECT_TRUE(is_refused(repository().get(net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().latest("nut"), Code::not_found));
  EXPECT_TRUE(is_refused(repository().versions("nut"), Code::not_found));
  EXPECT_TRUE(is_refused(repository().owners(net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().lineage(net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().pin(net(9), "me"), Code::not_found));
  EXPECT_TRUE(is_refused(repository().unpin(net(1), "me"), Code::not_found));
  EXPECT_TRUE(is_refused(repository().pins(net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().retire(net(9), {}), Code::not_found));
  EXPECT_TRUE(is_refused(repository().retire({.model = "net"}, {}), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().verify(net(9), {}), Code::not_found));
  EXPECT_TRUE(is_refused(repository().diff(net(1), net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().mrca(net(1), net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().descendants(net(9)), Code::not_found));
  EXPECT_TRUE(is_refused(repository().contributors(net(9)), Code::not_found));
}

TEST_P(RepositoryConformance, EqualContentAndSmallDifferencesReadBackAsTheyWere) {
  const TestVersion first = stored(version("net"));
  TestVersion copy = version("copy");
  copy.bytes = first.bytes;
  copy.manifest.digests = first.manifest.digests;
  copy = stored(std::move(copy), {.dedup = true});
  TestVersion tuned = version("net", &first, {2, 3});
  for (const std::size_t tensor : {2u, 3u}) {
    tuned.bytes[tensor] = first.bytes[tensor];
    for (std::size_t at = 0; at < tuned.bytes[tensor].size(); at += 1000) tuned.bytes[tensor][at] ^= std::byte{1};
    tuned.manifest.digests[tensor] = digest_of(tuned.bytes[tensor]);
  }
  tuned = stored(std::move(tuned), {.deltas = true});
  expect_bytes(first);
  expect_bytes(copy);
  expect_bytes(tuned);
  if (!several()) {
    EXPECT_EQ(repository().get(copy.manifest.name)->own_bytes, 0u) << "all of it was there";
    EXPECT_EQ(repository().stat()->live_tensors, 4u + 2u);
  }
  const auto record = repository().get(tuned.manifest.name);
  std::vector<std::byte> part(500);
  ASSERT_TRUE(repository().read_range(*record, 3, 12'345, part));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), tuned.bytes[3].begin() + 12'345));
  expect_sound();
  ASSERT_TRUE(repository().retire(first.manifest.name, {}));
  ASSERT_TRUE(repository().gc({}, {}));
  expect_bytes(copy);
  expect_bytes(tuned);
  expect_sound();
}

}  // namespace freshet
