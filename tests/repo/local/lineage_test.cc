// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/repo/world.h"
#include "tests/support/refused.h"

namespace freshet {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LineageOfVersions : public testing::Test {
 protected:
  /// Puts a version of `model` in which `changed` tensors of `base`'s are new; all of them without a base.
  TestVersion put_version(const std::string& model, const TestVersion* base, std::vector<std::uint32_t> changed,
                          std::optional<double> quality = std::nullopt) {
    TestVersion version = make_version(model, test_id(++sequence_), architecture_, base, changed, random_);
    const Result<VersionName> name = put(*repository_, version, {.quality = quality});
    EXPECT_TRUE(name.has_value()) << name.error().message();
    version.manifest.name = *name;
    return version;
  }

  std::string mrca(const std::string& a, const std::string& b) {
    const auto common = repository_->mrca(*parse_version_name(a), *parse_version_name(b));
    EXPECT_TRUE(common.has_value());
    return *common ? to_string(**common) : "none";
  }
  std::vector<std::string> names(const Result<std::vector<LineageRow>>& rows) {
    EXPECT_TRUE(rows.has_value());
    std::vector<std::string> names;
    for (const LineageRow& row : *rows) names.push_back(to_string(row.version));
    return names;
  }
  std::vector<std::string> descendants(const std::string& of) {
    return names(repository_->descendants(*parse_version_name(of)));
  }
  std::vector<std::string> lineage(const std::string& of) {
    return names(repository_->lineage(*parse_version_name(of)));
  }

  std::mt19937_64 random_{1};
  std::uint64_t sequence_ = 0;
  std::shared_ptr<const Architecture> architecture_ = test_architecture({16, 32, 64});
  std::unique_ptr<Repository> repository_ = open_or_die(make_memory_backend());
};

TEST_F(LineageOfVersions, BranchesMeetWhereTheyParted) {
  const TestVersion root = put_version("root", nullptr, {});
  const TestVersion left = put_version("left", &root, {0});
  const TestVersion right = put_version("right", &root, {1});
  const TestVersion leaf = put_version("left", &left, {2});
  put_version("lonely", nullptr, {});

  EXPECT_EQ(mrca("left@2", "right"), "root@1");
  EXPECT_EQ(mrca("left@2", "left@1"), "left@1");
  EXPECT_EQ(mrca("right", "right@1"), "right@1");
  EXPECT_EQ(mrca("right", "lonely"), "none");
  EXPECT_THAT(lineage("left"), ElementsAre("left@2", "left@1", "root@1"));
  EXPECT_THAT(descendants("root"), ElementsAre("left@1", "right@1", "left@2"));
  EXPECT_THAT(descendants("left@2"), IsEmpty());
  EXPECT_EQ(repository_->mrca({.model = "nobody"}, {.model = "left"}).error().code(), Code::not_found);
  EXPECT_EQ(repository_->descendants({.model = "left", .number = 9}).error().code(), Code::not_found);
}

TEST_F(LineageOfVersions, AnAncestorThatComesLaterTakesItsPlace) {
  TestVersion first = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  first.manifest.name.number = 1;
  TestVersion second = make_version("net", test_id(2), architecture_, &first, {0}, random_);
  second.manifest.name.number = 5;
  ASSERT_TRUE(put(*repository_, second).has_value());
  const auto line = repository_->lineage({.model = "net"});
  ASSERT_EQ(line->size(), 1u);
  EXPECT_EQ(to_string(line->front().ancestor), "net@1") << "as its manifest calls it";
  first.manifest.name = {.model = "origin"};
  ASSERT_TRUE(put(*repository_, first).has_value());
  EXPECT_THAT(lineage("net"), ElementsAre("net@5", "origin@1"));
  EXPECT_THAT(descendants("origin"), ElementsAre("net@5"));
}

TEST_F(LineageOfVersions, AVersionThatWouldDescendFromItselfIsRefused) {
  const TestVersion first = make_version("net", test_id(1), architecture_, nullptr, {}, random_);
  const TestVersion second = make_version("net", test_id(2), architecture_, &first, {0}, random_);
  ASSERT_TRUE(put(*repository_, second).has_value());
  TestVersion circle = first;
  circle.manifest.ancestor = second.manifest.id;
  EXPECT_TRUE(is_refused(put(*repository_, circle), Code::invalid_argument));
  EXPECT_TRUE(put(*repository_, first).has_value());
}

TEST_F(LineageOfVersions, ContributorsAreTheWritersOfWhatItHas) {
  const TestVersion root = put_version("root", nullptr, {});
  const TestVersion middle = put_version("net", &root, {0, 1});
  const TestVersion leaf = put_version("net", &middle, {1});
  TestVersion merged = make_version("net", test_id(99), architecture_, &leaf, {}, random_);
  const TestVersion other = put_version("aside", &root, {2});
  std::vector<SegmentName> owners(merged.manifest.owners.owners().begin(), merged.manifest.owners.owners().end());
  owners[2] = other.manifest.owners[2];
  merged.manifest.owners = OwnerMap(owners);
  merged.manifest.digests[2] = other.manifest.digests[2];
  ASSERT_TRUE(put(*repository_, merged).has_value());

  const auto of_leaf = repository_->contributors({.model = "net", .number = 2});
  ASSERT_EQ(of_leaf->size(), 3u);
  EXPECT_EQ(to_string((*of_leaf)[0].version), "net@2");
  EXPECT_THAT((*of_leaf)[0].tensors, ElementsAre("layer1.kernel"));
  EXPECT_EQ((*of_leaf)[0].bytes, 32u);
  EXPECT_EQ(to_string((*of_leaf)[1].version), "net@1");
  EXPECT_THAT((*of_leaf)[1].tensors, ElementsAre("layer0.kernel"));
  EXPECT_EQ(to_string((*of_leaf)[2].version), "root@1");
  EXPECT_EQ((*of_leaf)[2].bytes, 64u);

  const auto of_merged = repository_->contributors({.model = "net", .number = 3});
  ASSERT_EQ(of_merged->size(), 3u) << "it wrote nothing itself";
  EXPECT_EQ(to_string((*of_merged)[2].version), "aside@1");
  EXPECT_FALSE((*of_merged)[2].is_ancestor);
  EXPECT_TRUE((*of_merged)[1].is_ancestor);
}

TEST_F(LineageOfVersions, WhatWasRetiredKeepsItsLine) {
  const TestVersion root = put_version("root", nullptr, {});
  const TestVersion middle = put_version("net", &root, {0}, 0.25);
  const TestVersion left = put_version("left", &middle, {1});
  put_version("right", &middle, {2});
  ASSERT_TRUE(repository_->retire({.model = "net", .number = 1}, {}));
  ASSERT_TRUE(repository_->retire({.model = "left", .number = 1}, {}));

  const auto line = repository_->lineage({.model = "right"});
  ASSERT_EQ(line->size(), 3u);
  EXPECT_TRUE((*line)[1].retired);
  EXPECT_EQ((*line)[1].quality, 0.25);
  EXPECT_EQ(to_string((*line)[1].ancestor), "root@1");
  EXPECT_FALSE((*line)[2].retired);
  EXPECT_EQ(mrca("right", "left@1"), "net@1");
  EXPECT_THAT(lineage("left@1"), ElementsAre("left@1", "net@1", "root@1"));
  EXPECT_THAT(descendants("net@1"), ElementsAre("left@1", "right@1"));
  const auto writers = repository_->contributors({.model = "right"});
  ASSERT_EQ(writers->size(), 3u);
  EXPECT_EQ(to_string((*writers)[1].version), "net@1");
  EXPECT_TRUE((*writers)[1].retired);
  EXPECT_EQ(repository_->diff({.model = "left", .number = 1}, {.model = "right"}).error().code(), Code::not_found);
}

TEST_F(LineageOfVersions, DiffNamesLayersByWhatTheyComputeAndTensorsByTheirBytes) {
  const auto graph = [](const std::string& second, const std::string& third) {
    const auto layer = [](const std::string& name, const std::string& input, const std::string& units) {
      return R"({"name":")" + name + R"(","class":"Dense","config":{"units":)" + units + R"(},"inputs":[")" + input +
             R"("],"tensors":{"w":{"dtype":"u8","shape":[8]}}})";
    };
    return *parse_graph_json(R"({"freshet_graph":1,"name":"g","layers":[{"name":"x","class":"Input"},)" +
                             layer("a", "x", "1") + "," + layer(second, "a", "2") + "," + layer(third, second, "3") +
                             R"(],"outputs":[")" + third + R"("]})");
  };
  const TestVersion a = make_version("net", test_id(1), graph("b", "c"), nullptr, {}, random_);
  ASSERT_TRUE(put(*repository_, a, {.quality = 0.5}).has_value());
  // Its second layer goes by another name, has the same bytes and the same place; the third one's bytes are new.
  TestVersion b = make_version("net", test_id(2), graph("renamed", "c"), nullptr, {}, random_);
  b.bytes[0] = a.bytes[0];
  b.bytes[1] = a.bytes[1];
  for (int i = 0; i < 2; ++i) b.manifest.digests[i] = digest_of(b.bytes[i]);
  ASSERT_TRUE(put(*repository_, b, {.quality = 0.75}).has_value());

  const auto same_graph = repository_->diff({.model = "net", .number = 1}, {.model = "net", .number = 2});
  ASSERT_TRUE(same_graph.has_value());
  EXPECT_THAT(same_graph->layers_added, IsEmpty());
  EXPECT_THAT(same_graph->layers_removed, IsEmpty());
  ASSERT_EQ(same_graph->tensors_changed.size(), 1u);
  EXPECT_EQ(same_graph->tensors_changed[0].name, "c.w");
  EXPECT_EQ(same_graph->tensors_changed[0].bytes, 8u);
  EXPECT_EQ(to_string(same_graph->tensors_changed[0].owner_a), "net@1");
  EXPECT_EQ(to_string(same_graph->tensors_changed[0].owner_b), "net@2");
  EXPECT_EQ(same_graph->quality_a, 0.5);
  EXPECT_EQ(same_graph->quality_b, 0.75);
}

TEST_F(LineageOfVersions, SlicesOfATensorAreComparedWithThemselvesAlone) {
  const auto half = [](int row) {
    return *parse_graph_json(R"({"freshet_graph":1,"layers":[{"name":"x","class":"Input"},{"name":"a","class":"Dense",)"
                             R"("inputs":["x"],"tensors":{"w":{"dtype":"u8","shape":[8],"slice":{"global_shape":[16],)"
                             R"("offset":[)" +
                             std::to_string(8 * row) + R"(],"parts":2}}}}],"outputs":["a"]})");
  };
  for (const int row : {0, 1, 0}) {
    const TestVersion version = make_version("net", test_id(++sequence_), half(row), nullptr, {}, random_);
    ASSERT_TRUE(put(*repository_, version).has_value());
  }
  const auto others = repository_->diff({.model = "net", .number = 1}, {.model = "net", .number = 2});
  ASSERT_TRUE(others.has_value());
  EXPECT_THAT(others->layers_added, IsEmpty()) << "it is one architecture";
  EXPECT_THAT(others->tensors_changed, IsEmpty());
  const auto same = repository_->diff({.model = "net", .number = 1}, {.model = "net", .number = 3});
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->tensors_changed.size(), 1u);
}

TEST_F(LineageOfVersions, ALineOfTenThousandIsAnsweredWholeAndSoAreItsDescendants) {
  constexpr std::size_t kDepth = 10'000;
  architecture_ = test_architecture({1});
  TestVersion version = put_version("net", nullptr, {});
  for (std::size_t i = 1; i < kDepth; ++i) version = put_version("net", &version, {0}, 0.5);
  const auto line = repository_->lineage({.model = "net"});
  ASSERT_EQ(line->size(), kDepth);
  for (std::size_t i = 0; i < kDepth; ++i) ASSERT_EQ((*line)[i].version.number, kDepth - i);
  EXPECT_EQ(descendants("net@1").size(), kDepth - 1);
  EXPECT_EQ(mrca("net@10000", "net@4321"), "net@4321");
}

}  // namespace
}  // namespace freshet
