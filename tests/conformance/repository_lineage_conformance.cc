// SPDX-License-Identifier: Apache-2.0
/// Who came from whom, what differs, and names.

#include "tests/conformance/repository_conformance.h"

namespace freshet {

std::vector<std::string> names_of(const std::vector<LineageRow>& rows) {
  std::vector<std::string> names;
  for (const LineageRow& row : rows) names.push_back(to_string(row.version));
  return names;
}

using Names = std::vector<std::string>;

TEST_P(RepositoryConformance, BranchesMeetWhereTheyParted) {
  const TestVersion root = stored(version("root"), {.quality = 0.25});
  const TestVersion left = stored(version("left", &root, {0}));
  const TestVersion right = stored(version("right", &root, {1}));
  const TestVersion leaf = stored(version("left", &left, {2}));
  const TestVersion lonely = stored(version("lonely"));
  EXPECT_EQ(repository().mrca(leaf.manifest.name, right.manifest.name).value(), root.manifest.name);
  EXPECT_EQ(repository().mrca(leaf.manifest.name, left.manifest.name).value(), left.manifest.name);
  EXPECT_EQ(repository().mrca(right.manifest.name, right.manifest.name).value(), right.manifest.name);
  EXPECT_EQ(repository().mrca(right.manifest.name, lonely.manifest.name).value(), std::nullopt);
  const auto line = repository().lineage({.model = "left"});
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_EQ(names_of(*line), (Names{"left@2", "left@1", "root@1"}));
  EXPECT_EQ((*line)[0].own_bytes, 20'000u);
  EXPECT_EQ((*line)[0].inherited_bytes, 71'007u);
  EXPECT_EQ(to_string((*line)[0].ancestor), "left@1");
  EXPECT_EQ((*line)[2].quality, 0.25);
  EXPECT_EQ((*line)[2].ancestor, VersionName{});
  auto descendants = names_of(repository().descendants({.model = "root"}).value());
  std::sort(descendants.begin(), descendants.end());
  EXPECT_EQ(descendants, (Names{"left@1", "left@2", "right@1"}));
  EXPECT_TRUE(repository().descendants(leaf.manifest.name)->empty());
  EXPECT_EQ(repository().models().value(), (Names{"left", "lonely", "right", "root"}));
  EXPECT_EQ(names_of(repository().versions("left").value()), (Names{"left@1", "left@2"}));
}

TEST_P(RepositoryConformance, WhatWasRetiredKeepsItsLine) {
  const TestVersion root = stored(version("root"));
  const TestVersion middle = stored(version("net", &root, {0}), {.quality = 0.25});
  const TestVersion left = stored(version("left", &middle, {1}));
  const TestVersion right = stored(version("right", &middle, {2}));
  ASSERT_TRUE(repository().retire(middle.manifest.name, {}));
  ASSERT_TRUE(repository().retire(left.manifest.name, {}));
  const auto line = repository().lineage({.model = "right"});
  ASSERT_TRUE(line) << line.error().message();
  EXPECT_EQ(names_of(*line), (Names{"right@1", "net@1", "root@1"}));
  EXPECT_TRUE((*line)[1].retired);
  EXPECT_EQ((*line)[1].quality, 0.25);
  EXPECT_FALSE((*line)[2].retired);
  EXPECT_EQ(repository().mrca(right.manifest.name, left.manifest.name).value(), middle.manifest.name);
  EXPECT_EQ(names_of(repository().lineage(left.manifest.name).value()), (Names{"left@1", "net@1", "root@1"}));
  const auto writers = repository().contributors({.model = "right"});
  ASSERT_TRUE(writers) << writers.error().message();
  ASSERT_EQ(writers->size(), 3u);
  EXPECT_EQ(to_string((*writers)[0].version), "right@1");
  EXPECT_EQ((*writers)[0].tensors, std::vector<std::string>{"layer2.kernel"});
  EXPECT_EQ(to_string((*writers)[1].version), "net@1");
  EXPECT_TRUE((*writers)[1].retired);
  EXPECT_TRUE((*writers)[1].is_ancestor);
  EXPECT_EQ((*writers)[2].tensor_count, 2u);
  EXPECT_EQ((*writers)[2].bytes, 70'007u);
  EXPECT_TRUE(is_refused(repository().diff(left.manifest.name, right.manifest.name), Code::not_found));
  EXPECT_TRUE(is_refused(repository().owners(middle.manifest.name), Code::not_found));
  const auto owners = repository().owners(right.manifest.name);
  EXPECT_EQ(owners->at(0).owner, middle.manifest.name) << "its name stays known";
}

TEST_P(RepositoryConformance, ADiffNamesWhatChanged) {
  const TestVersion first = stored(version("net"), {.quality = 0.5});
  const TestVersion second = stored(version("net", &first, {1}), {.quality = 0.75});
  const auto diff = repository().diff(net(1), net(2));
  ASSERT_TRUE(diff) << diff.error().message();
  EXPECT_TRUE(diff->layers_added.empty());
  EXPECT_TRUE(diff->layers_removed.empty());
  ASSERT_EQ(diff->tensors_changed.size(), 1u);
  EXPECT_EQ(diff->tensors_changed[0].name, "layer1.kernel");
  EXPECT_EQ(diff->tensors_changed[0].bytes, 7u);
  EXPECT_EQ(diff->tensors_changed[0].owner_a, net(1));
  EXPECT_EQ(diff->tensors_changed[0].owner_b, net(2));
  EXPECT_EQ(diff->quality_a, 0.5);
  EXPECT_EQ(diff->quality_b, 0.75);
  architecture_ = test_architecture({1000, 7, 30});
  stored(version("other"));
  const auto graphs = repository().diff(net(2), {.model = "other"});
  ASSERT_TRUE(graphs) << graphs.error().message();
  EXPECT_EQ(graphs->layers_removed.size(), 2u);
  EXPECT_EQ(graphs->layers_added.size(), 1u);
}

TEST_P(RepositoryConformance, AVersionThatWouldDescendFromItselfIsRefused) {
  const TestVersion first = version("net");
  const TestVersion second = stored(version("net", &first, {0}));
  TestVersion circle = first;
  circle.manifest.ancestor = second.manifest.id;
  if (several()) {  // Each provider knows its own; no line may go on for ever.
    (void)put(repository(), circle);
    EXPECT_LE(repository().lineage(second.manifest.name)->size(), 2u);
    return;
  }
  EXPECT_TRUE(is_refused(put(repository(), circle), Code::invalid_argument));
}

TEST_P(RepositoryConformance, AliasesMoveOnlyFromWhatWasExpected) {
  line(4);
  ASSERT_TRUE(repository().set_alias("net", "best", 0, 1));
  EXPECT_EQ(repository().resolve("net@best").value(), net(1));
  EXPECT_EQ(repository().resolve("net@2").value(), net(2));
  const Status late = repository().set_alias("net", "best", 0, 2);
  EXPECT_TRUE(is_refused(late, Code::failed_precondition));
  EXPECT_EQ(late.error().message(), "net@best means version 1 now, not no version");
  EXPECT_TRUE(repository().set_alias("net", "best", 1, 3));
  EXPECT_TRUE(repository().set_alias("net", "last", std::nullopt, 4));
  EXPECT_EQ(repository().aliases("net").value(), (std::vector<Alias>{{"best", 3}, {"last", 4}}));
  EXPECT_TRUE(is_refused(repository().set_alias("net", "best", 3, 9), Code::not_found));
  EXPECT_TRUE(is_refused(repository().set_alias("nothing", "best", 0, 1), Code::not_found));
  EXPECT_TRUE(is_refused(repository().set_alias("net", "1st", 0, 1), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().set_alias("../net", "best", 0, 1), Code::invalid_argument));
  EXPECT_TRUE(is_refused(repository().retire(net(3), {}), Code::failed_precondition));
  EXPECT_TRUE(repository().retire(net(1), {})) << "no alias means it any more";
  EXPECT_TRUE(is_refused(repository().set_alias("net", "best", 3, 1), Code::not_found));
  EXPECT_TRUE(repository().set_alias("net", "best", 3, 0));
  EXPECT_TRUE(repository().retire(net(3), {}));
  EXPECT_TRUE(is_refused(repository().resolve("net@best"), Code::not_found));
  EXPECT_EQ(repository().aliases("net").value(), (std::vector<Alias>{{"last", 4}}));
  EXPECT_TRUE(repository().aliases("nothing")->empty());
  expect_sound();
}

}  // namespace freshet
