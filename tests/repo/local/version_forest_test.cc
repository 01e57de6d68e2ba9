// SPDX-License-Identifier: Apache-2.0
#include "repo/local/catalog/version_forest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/repo/world.h"

namespace freshet {
namespace {

using Node = VersionForest::Node;

constexpr std::uint64_t kNobody = 0;

VersionName name_of(std::uint64_t number) { return {.model = "net", .number = number}; }

/// Who has which ancestor, by number, and what is asked of a forest answered by walking step by step.
struct Model {
  std::map<std::uint64_t, std::uint64_t> parent;  ///< Of those that are stored; an ancestor may not be.

  std::vector<std::uint64_t> line(std::uint64_t version) const {
    std::vector<std::uint64_t> line;
    for (auto at = parent.find(version); at != parent.end(); at = parent.find(at->second)) line.push_back(at->first);
    return line;
  }
  std::uint64_t mrca(std::uint64_t a, std::uint64_t b) const {
    const std::vector<std::uint64_t> of_a = line(a);
    for (const std::uint64_t version : line(b)) {
      if (std::ranges::find(of_a, version) != of_a.end()) return version;
    }
    return kNobody;
  }
};

std::shared_ptr<const VersionRow> row(std::uint64_t version, std::uint64_t parent) {
  VersionRow row{.id = test_id(version)};
  if (parent != kNobody) row.ancestor = test_id(parent);
  return std::make_shared<const VersionRow>(std::move(row));
}

std::vector<std::uint64_t> line_in(const VersionForest& forest, std::uint64_t version) {
  std::vector<std::uint64_t> line;
  for (Node at = forest.find(test_id(version)); at != VersionForest::kNone && forest.is_stored(at);
       at = forest.parent(at)) {
    line.push_back(forest.name(at).number);
  }
  return line;
}

std::uint64_t mrca_in(const VersionForest& forest, std::uint64_t a, std::uint64_t b) {
  const Node common = forest.mrca(forest.find(test_id(a)), forest.find(test_id(b)));
  return common == VersionForest::kNone ? kNobody : forest.name(common).number;
}

void expect_equal(const VersionForest& forest, const Model& model, std::mt19937_64& random) {
  std::vector<std::uint64_t> stored;
  for (const auto& [version, parent] : model.parent) stored.push_back(version);
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t a = stored[random() % stored.size()];
    const std::uint64_t b = stored[random() % stored.size()];
    ASSERT_EQ(line_in(forest, a), model.line(a));
    ASSERT_EQ(mrca_in(forest, a, b), model.mrca(a, b)) << a << " and " << b;
    const std::vector<std::uint64_t> above = model.line(a);
    const bool is_ancestor = std::ranges::find(above, b) != above.end();
    ASSERT_EQ(forest.is_ancestor(forest.find(test_id(b)), forest.find(test_id(a))), is_ancestor) << b << " of " << a;
    const std::uint64_t ancestor = above[random() % above.size()];
    const Node node = forest.find(test_id(ancestor));
    ASSERT_EQ(forest.ancestor_at(forest.find(test_id(a)), forest.depth(node)), node);
  }
}

/// Versions 1 to `count`; long lines and bushes, some of whose roots name an ancestor that never comes.
Model random_model(std::uint64_t count, std::mt19937_64& random) {
  Model model;
  const std::uint64_t reach = 1 + random() % count;
  for (std::uint64_t version = 1; version <= count; ++version) {
    const std::uint64_t kind = random() % 50;
    const std::uint64_t nearest = version > reach ? version - reach : 1;
    std::uint64_t parent = version == 1 ? kNobody : nearest + random() % (version - nearest);
    if (kind == 0) parent = kNobody;
    if (kind == 1) parent = count + 1 + random() % 3;
    model.parent[version] = parent;
  }
  return model;
}

TEST(VersionForest, AnswersAsAWalkDoesInWhateverOrderVersionsCome) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const Model model = random_model(300, random);
    std::vector<std::uint64_t> order;
    for (const auto& [version, parent] : model.parent) order.push_back(version);
    if (seed % 3 == 1) std::ranges::shuffle(order, random);
    if (seed % 3 == 2) std::ranges::reverse(order);

    VersionForest one_by_one;
    Model so_far;
    for (const std::uint64_t version : order) {
      one_by_one.set(name_of(version), row(version, model.parent.at(version)));
      so_far.parent[version] = model.parent.at(version);
      if (so_far.parent.size() % 60 == 0) expect_equal(one_by_one, so_far, random);
    }
    expect_equal(one_by_one, model, random);

    VersionForest at_once;
    for (const std::uint64_t version : order) {
      at_once.set_unsettled(name_of(version), row(version, model.parent.at(version)));
    }
    at_once.settle();
    expect_equal(at_once, model, random);
  }
}

TEST(VersionForest, ChildrenStandInTheOrderInWhichTheyCame) {
  VersionForest forest;
  for (const std::uint64_t version : {4, 2, 3}) forest.set(name_of(version), row(version, 1));
  EXPECT_EQ(forest.find(test_id(1)), VersionForest::kNone) << "an ancestor that never came is nobody's answer";
  EXPECT_EQ(mrca_in(forest, 2, 3), kNobody);
  forest.set(name_of(1), row(1, kNobody));
  EXPECT_EQ(mrca_in(forest, 2, 3), 1u);
  std::vector<std::uint64_t> children;
  for (Node child = forest.first_child(forest.find(test_id(1))); child != VersionForest::kNone;
       child = forest.next_sibling(child)) {
    children.push_back(forest.name(child).number);
  }
  EXPECT_EQ(children, (std::vector<std::uint64_t>{4, 2, 3}));
}

TEST(VersionForest, AnotherRowKeepsTheLine) {
  VersionForest forest;
  for (std::uint64_t version = 1; version <= 3; ++version) forest.set(name_of(version), row(version, version - 1));
  VersionRow retired = *row(2, 1);
  retired.retired = true;
  forest.set(name_of(2), std::make_shared<const VersionRow>(retired));
  EXPECT_EQ(line_in(forest, 3), (std::vector<std::uint64_t>{3, 2, 1}));
  EXPECT_TRUE(forest.row(forest.find(test_id(2)))->retired);
  EXPECT_EQ(forest.size(), 3u);
}

TEST(VersionForest, ACircleIsCutAtItsLeastMemberInWhateverOrderItsMembersCome) {
  // 7 -> 6 -> 5 -> 4 -> 6: the circle is 4, 6, 5, and 7 and 8 hang on it.
  const std::map<std::uint64_t, std::uint64_t> parent = {{4, 6}, {5, 4}, {6, 5}, {7, 6}, {8, 7}, {9, 9}};
  std::vector<std::uint64_t> order = {4, 5, 6, 7, 8, 9};
  do {
    VersionForest forest;
    for (const std::uint64_t version : order) forest.set_unsettled(name_of(version), row(version, parent.at(version)));
    forest.settle();
    ASSERT_EQ(line_in(forest, 8), (std::vector<std::uint64_t>{8, 7, 6, 5, 4}));
    ASSERT_EQ(line_in(forest, 9), (std::vector<std::uint64_t>{9}));
    ASSERT_EQ(mrca_in(forest, 8, 5), 5u);

    VersionForest live;  // Where it is cut depends on the order here; that it ends does not.
    for (const std::uint64_t version : order) live.set(name_of(version), row(version, parent.at(version)));
    for (const std::uint64_t version : order) ASSERT_LE(line_in(live, version).size(), order.size());
    ASSERT_LE(mrca_in(live, 8, 4), 8u);
  } while (std::ranges::next_permutation(order).found);
}

TEST(VersionForest, KnowsWhichPutWouldCloseACircle) {
  VersionForest forest;
  forest.set(name_of(2), row(2, 1));
  forest.set(name_of(3), row(3, 2));
  EXPECT_TRUE(forest.closes_circle(test_id(1), test_id(3)));
  EXPECT_TRUE(forest.closes_circle(test_id(1), test_id(1)));
  EXPECT_FALSE(forest.closes_circle(test_id(4), test_id(3)));
  EXPECT_FALSE(forest.closes_circle(test_id(1), test_id(5)));
}

}  // namespace
}  // namespace freshet
