// SPDX-License-Identifier: Apache-2.0
#include "repo/repository.h"

#include <gtest/gtest.h>

#include "repo/local/local_repository.h"
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

TEST_F(RepositoryTest, VersionsOfOneArchitectureShareIt) {
  const TestVersion first = version(1);
  ASSERT_TRUE(put(*repository_, first));
  ASSERT_TRUE(put(*repository_, version(2, &first, {0})));
  EXPECT_EQ(repository_->get({.model = "net", .number = 1})->manifest.architecture,
            repository_->get({.model = "net", .number = 2})->manifest.architecture);
}

}  // namespace
}  // namespace freshet
