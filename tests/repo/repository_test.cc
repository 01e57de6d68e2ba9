#include "repo/repository.h"

#include <gtest/gtest.h>

#include "repo/local_repository.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

class RepositoryTest : public testing::Test {
 protected:
  TestVersion version(std::uint64_t sequence, const TestVersion* base = nullptr,
                      const std::vector<std::uint32_t>& changed = {}) {
    return make_version("net", test_id(sequence), architecture_, base, changed, random_);
  }

  std::mt19937_64 random_{42};
  std::shared_ptr<const Architecture> architecture_ = test_architecture({1000, 0, 7, 70000});
  std::unique_ptr<Repository> repository_ = open_or_die(make_memory_backend());
};

TEST_F(RepositoryTest, APutVersionReadsBack) {
  TestVersion first = version(1);
  first.manifest.step = 12;
  first.manifest.metrics = {{"loss", 0.5}};
  first.manifest.tags = {{"who", "test"}};
  const auto name = put(*repository_, first, {.quality = 0.75});
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(to_string(*name), "net@1");
  const auto record = repository_->get({.model = "net"});
  ASSERT_TRUE(record) << record.error().message();
  EXPECT_EQ(record->manifest.name, *name);
  EXPECT_EQ(record->manifest.step, 12u);
  EXPECT_EQ(record->manifest.metrics, first.manifest.metrics);
  EXPECT_EQ(record->manifest.tags, first.manifest.tags);
  EXPECT_EQ(record->manifest.owners, first.manifest.owners);
  EXPECT_EQ(record->manifest.architecture->digest(), architecture_->digest());
  EXPECT_EQ(record->quality, 0.75);
  EXPECT_TRUE(record->has_weights);
  EXPECT_EQ(record->own_bytes, 71007u);
  EXPECT_EQ(record->inherited_bytes, 0u);
  EXPECT_EQ(read_all(*repository_, *name).value(), first.bytes);
  EXPECT_EQ(repository_->find(first.manifest.id).value(), *name);
  EXPECT_EQ(repository_->latest("net").value(), 1u);
  EXPECT_EQ(repository_->models().value(), std::vector<std::string>{"net"});
}

TEST_F(RepositoryTest, OnlyWhatIsNotStoredIsAskedFor) {
  const TestVersion first = version(1);
  const TestVersion second = version(2, &first, {2});
  ASSERT_TRUE(put(*repository_, first));
  std::vector<std::uint32_t> asked;
  const auto name = repository_->put(second.manifest,
                                     [&](std::uint32_t tensor) -> Result<Bytes> {
                                       asked.push_back(tensor);
                                       return Bytes(second.bytes[tensor]);
                                     },
                                     {});
  ASSERT_TRUE(name);
  EXPECT_EQ(asked, std::vector<std::uint32_t>{2});
  EXPECT_EQ(read_all(*repository_, *name).value(), second.bytes);
  const auto record = repository_->get(*name);
  EXPECT_EQ(record->own_bytes, 7u);
  EXPECT_EQ(record->inherited_bytes, 71000u);
  const auto stat = repository_->stat();
  EXPECT_EQ(stat->versions, 2u);
  EXPECT_EQ(stat->live_tensors, 5u);
  EXPECT_EQ(stat->live_bytes, 71014u);
}

// A sink that joined late: the first version that it sees inherits from versions that it never will.
TEST_F(RepositoryTest, SegmentsOfVersionsThatWereNeverStoredAreAdopted) {
  const TestVersion first = version(1);
  const TestVersion second = version(2, &first, {0});
  const TestVersion third = version(3, &second, {3});
  const auto name = put(*repository_, third);
  ASSERT_TRUE(name);
  EXPECT_EQ(read_all(*repository_, *name).value(), third.bytes);
  const auto owners = repository_->owners(*name);
  ASSERT_TRUE(owners);
  ASSERT_EQ(owners->size(), 4u);
  EXPECT_EQ((*owners)[0].owner, VersionName{});
  EXPECT_EQ((*owners)[0].segment.writer, second.manifest.id);
  EXPECT_EQ((*owners)[3].owner, *name);
  EXPECT_EQ((*owners)[3].tensor, "layer3.kernel");
  EXPECT_EQ((*owners)[3].bytes, 70000u);
  // When the writer itself comes later, its segments are there already.
  ASSERT_TRUE(put(*repository_, second));
  EXPECT_EQ((*repository_->owners(*name))[0].owner.number, 2u);
}

TEST_F(RepositoryTest, PartsAreReadIntoTheCallersMemory) {
  const TestVersion first = version(1);
  const auto name = put(*repository_, first);
  const auto record = repository_->get(*name);
  std::vector<std::byte> out(7);
  const std::vector<Repository::TensorRead> reads = {{.tensor = 2, .out = out}};
  ASSERT_TRUE(repository_->read(*record, reads));
  EXPECT_EQ(out, first.bytes[2]);
  const std::vector<Repository::TensorRead> wrong_room = {{.tensor = 0, .out = out}};
  EXPECT_EQ(repository_->read(*record, wrong_room).error().code(), Code::invalid_argument);
  const std::vector<Repository::TensorRead> no_such = {{.tensor = 4, .out = out}};
  EXPECT_EQ(repository_->read(*record, no_such).error().code(), Code::invalid_argument);
}

TEST_F(RepositoryTest, NumbersGrowAndAreNeverGivenTwice) {
  TestVersion a = version(1);
  a.manifest.name.number = 10;
  EXPECT_EQ(put(*repository_, a)->number, 10u);
  TestVersion b = version(2, &a, {0});
  EXPECT_EQ(put(*repository_, b)->number, 11u);
  TestVersion c = version(3, &a, {0});
  c.manifest.name.number = 4;
  EXPECT_EQ(put(*repository_, c)->number, 12u);
  TestVersion d = version(4, &a, {0});
  d.manifest.name.number = ~VersionNumber{0};
  EXPECT_EQ(put(*repository_, d).error().code(), Code::invalid_argument);
  EXPECT_EQ(repository_->latest("net").value(), 12u);
}

TEST_F(RepositoryTest, TheSameVersionTwiceIsRefused) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*repository_, first));
  const auto again = put(*repository_, first);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), Code::already_exists);
  EXPECT_EQ(repository_->versions("net")->size(), 1u);
}

TEST_F(RepositoryTest, WrongBytesLeaveNothing) {
  TestVersion first = version(1);
  first.bytes[3][500] ^= std::byte{1};
  const auto refused = put(*repository_, first);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::corrupt);
  EXPECT_NE(refused.error().message().find("layer3.kernel"), std::string::npos);
  first.bytes[3].pop_back();
  EXPECT_EQ(put(*repository_, first).error().code(), Code::corrupt);
  EXPECT_TRUE(repository_->models()->empty());
  EXPECT_EQ(repository_->stat()->live_tensors, 0u);
  EXPECT_EQ(repository_->get({.model = "net"}).error().code(), Code::not_found);
}

TEST_F(RepositoryTest, AnInheritedSegmentMustBeTheStoredOne) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*repository_, first));
  TestVersion liar = version(2, &first, {2});
  liar.manifest.digests[0].low ^= 1;
  EXPECT_EQ(put(*repository_, liar).error().code(), Code::corrupt);
  EXPECT_EQ(repository_->versions("net")->size(), 1u);
}

TEST_F(RepositoryTest, AnErrorOfTheCallerEndsThePut) {
  const TestVersion first = version(1);
  const auto refused = repository_->put(
      first.manifest, [](std::uint32_t) -> Result<Bytes> { return fail(Code::unavailable, "gone"); }, {});
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_TRUE(repository_->models()->empty());
  EXPECT_TRUE(put(*repository_, first));
}

TEST_F(RepositoryTest, BadManifestsAreRefused) {
  TestVersion bad = version(1);
  bad.manifest.name.model = "../etc";
  EXPECT_EQ(put(*repository_, bad).error().code(), Code::invalid_argument);
  bad = version(1);
  bad.manifest.ancestor = bad.manifest.id;
  EXPECT_EQ(put(*repository_, bad).error().code(), Code::invalid_argument);
  bad = version(1);
  bad.manifest.digests.pop_back();
  EXPECT_EQ(put(*repository_, bad).error().code(), Code::invalid_argument);
  bad = version(1);
  bad.manifest.architecture = nullptr;
  EXPECT_EQ(put(*repository_, bad).error().code(), Code::invalid_argument);
}

TEST_F(RepositoryTest, AGraphWithoutWeightsIsAModelToo) {
  TestVersion candidate = version(1);
  candidate.manifest.digests.assign(4, Digest{});
  const auto name =
      repository_->put(candidate.manifest, [](std::uint32_t) -> Result<Bytes> { return fail(Code::corrupt, "asked"); },
                       {.quality = {}, .has_weights = false});
  ASSERT_TRUE(name) << name.error().message();
  const auto record = repository_->get(*name);
  ASSERT_TRUE(record);
  EXPECT_FALSE(record->has_weights);
  EXPECT_EQ(record->own_bytes, 0u);
  EXPECT_EQ(read_all(*repository_, *name).error().code(), Code::failed_precondition);
  EXPECT_EQ(repository_->verify(std::nullopt, {})->checked_bytes, 0u);
}

TEST_F(RepositoryTest, NotFoundSaysWhatIsThere) {
  EXPECT_EQ(repository_->get({.model = "net"}).error().message(), "no model net; the repository is empty");
  ASSERT_TRUE(put(*repository_, version(1)));
  EXPECT_EQ(repository_->get({.model = "nut"}).error().message(), "no model nut; here are: net");
  EXPECT_EQ(repository_->get({.model = "net", .number = 9}).error().message(),
            "no version net@9; net has 1 of them, 1 to 1");
}

TEST_F(RepositoryTest, LineageFollowsAncestorsAcrossModels) {
  TestVersion first = version(1);
  first.manifest.name.number = put(*repository_, first)->number;
  TestVersion second = version(2, &first, {0});
  second.manifest.name.number = put(*repository_, second, {.quality = 0.5})->number;
  TestVersion side = make_version("other", test_id(1, 2), architecture_, &first, {3}, random_);
  ASSERT_TRUE(put(*repository_, side));
  const auto rows = repository_->lineage({.model = "net"});
  ASSERT_TRUE(rows);
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ(to_string((*rows)[0].version), "net@2");
  EXPECT_EQ(to_string((*rows)[0].ancestor), "net@1");
  EXPECT_EQ((*rows)[0].own_bytes, 1000u);
  EXPECT_EQ((*rows)[0].inherited_bytes, 70007u);
  EXPECT_EQ((*rows)[0].quality, 0.5);
  EXPECT_EQ((*rows)[1].ancestor, VersionName{});
  const auto branch = repository_->lineage({.model = "other", .number = 1});
  ASSERT_EQ(branch->size(), 2u);
  EXPECT_EQ(to_string((*branch)[1].version), "net@1");
}

TEST_F(RepositoryTest, AnAncestorThatIsNotStoredGoesByTheNameThatItWasGiven) {
  TestVersion a = version(1);
  a.manifest.ancestor = test_id(2);
  a.manifest.ancestor_name = {.model = "net", .number = 2};
  ASSERT_TRUE(put(*repository_, a));
  EXPECT_EQ(to_string((*repository_->lineage({.model = "net"}))[0].ancestor), "net@2");
}

TEST_F(RepositoryTest, ACircleOfAncestorsInDamagedRecordsEnds) {
  auto backend = make_memory_backend();
  Backend& records = *backend;
  repository_ = open_or_die(std::move(backend));
  const TestVersion a = version(1);
  ASSERT_TRUE(put(*repository_, a));
  ASSERT_TRUE(put(*repository_, version(2, &a, {0})));
  const std::string key = version_key({.model = "net", .number = 1});
  VersionRow row = *decode_version_row(*records.get(key));
  row.ancestor = test_id(2);
  LocalRepository& local = dynamic_cast<LocalRepository&>(*repository_);
  ASSERT_TRUE(records.apply({Backend::Put{key, encode(row)}}));
  ASSERT_TRUE(local.load());
  EXPECT_EQ(repository_->lineage({.model = "net"})->size(), 2u);
  EXPECT_EQ(repository_->lineage({.model = "net", .number = 1})->size(), 1u);
  EXPECT_EQ(repository_->descendants({.model = "net", .number = 1})->size(), 1u);
}

TEST_F(RepositoryTest, PinsAreCountedPerHolder) {
  ASSERT_TRUE(put(*repository_, version(1)));
  const VersionName name{.model = "net", .number = 1};
  EXPECT_TRUE(repository_->pins(name)->empty());
  ASSERT_TRUE(repository_->pin(name, "a"));
  ASSERT_TRUE(repository_->pin(name, "a"));
  ASSERT_TRUE(repository_->pin({.model = "net"}, "b"));
  EXPECT_EQ(repository_->pins(name).value(), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(repository_->unpin(name, "a"));
  EXPECT_EQ(repository_->pins(name)->size(), 2u);
  ASSERT_TRUE(repository_->unpin(name, "a"));
  EXPECT_EQ(repository_->pins(name).value(), std::vector<std::string>{"b"});
  EXPECT_EQ(repository_->unpin(name, "a").error().code(), Code::not_found);
  EXPECT_EQ(repository_->pin({.model = "net", .number = 2}, "a").error().code(), Code::not_found);
  EXPECT_EQ(repository_->pin(name, "").error().code(), Code::invalid_argument);
}

TEST_F(RepositoryTest, VersionsOfOneArchitectureShareIt) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*repository_, first));
  ASSERT_TRUE(put(*repository_, version(2, &first, {0})));
  EXPECT_EQ(repository_->get({.model = "net", .number = 1})->manifest.architecture,
            repository_->get({.model = "net", .number = 2})->manifest.architecture);
}

}  // namespace
}  // namespace freshet
