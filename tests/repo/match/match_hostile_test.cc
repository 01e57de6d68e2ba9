// SPDX-License-Identifier: Apache-2.0
/// Graphs that nobody should send, and large ones that somebody might.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repo/match/explain.h"
#include "tests/repo/match/match_world.h"

namespace freshet {
namespace {

using testing::HasSubstr;

MatchGraph::Vertex vertex(std::uint64_t id, bool is_input = false) {
  MatchGraph::Vertex made{.slot = {}, .is_input = is_input};
  std::mt19937_64 random(id);
  const std::uint64_t halves[2] = {random(), random()};
  std::memcpy(made.slot.bytes.data(), halves, sizeof halves);
  return made;
}

/// Vertices 0, 1, … with these inputs.
MatchGraph::Parts parts_of(const std::vector<std::vector<std::uint32_t>>& inputs) {
  MatchGraph::Parts parts;
  parts.input_starts.push_back(0);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    parts.vertices.push_back(vertex(i));
    parts.inputs.insert(parts.inputs.end(), inputs[i].begin(), inputs[i].end());
    parts.input_starts.push_back(static_cast<std::uint32_t>(parts.inputs.size()));
  }
  return parts;
}

void expect_refused(MatchGraph::Parts parts, const std::string& reason) {
  const auto graph = MatchGraph::build(std::move(parts));
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), Code::invalid_argument);
  EXPECT_THAT(graph.error().message(), HasSubstr(reason));
  EXPECT_EQ(graph.error().message().find('\n'), std::string::npos);
}

TEST(MatchHostile, GraphsThatAreNoneAreRefused) {
  expect_refused(parts_of({{}, {2}, {1}}), "vertex 1: an input does not come from an earlier vertex");
  expect_refused(parts_of({{}, {1}}), "vertex 1: an input does not come from an earlier vertex");
  expect_refused(parts_of({{}, {7}}), "vertex 1: its input 7 does not exist");

  MatchGraph::Parts twice = parts_of({{}, {0}});
  twice.vertices[1].slot = twice.vertices[0].slot;
  expect_refused(twice, "vertex 1: slot");

  MatchGraph::Parts places = parts_of({{}, {0}, {1}});
  places.input_starts[1] = 9;
  expect_refused(places, "its inputs end before they begin");
  places.input_starts = {0, 0, 1};
  expect_refused(places, "3 places of inputs for 3 vertices");
  places.input_starts = {0, 0, 1, 5};
  expect_refused(places, "do not end where the list");

  MatchGraph::Parts input = parts_of({{}, {0}});
  input.vertices[1].is_input = true;
  expect_refused(input, "an input placeholder has neither");

  MatchGraph::Parts heavy = parts_of({{}, {0}});
  for (auto& each : heavy.vertices) {
    each.parametric = true;
    each.bytes = std::uint64_t{1} << 62;
  }
  expect_refused(heavy, "size overflows");
  heavy.vertices[0].parametric = false;
  expect_refused(heavy, "but no tensors");
}

TEST(MatchHostile, LimitsHold) {
  MatchGraph::Parts many;
  many.vertices.resize(1'000'000);
  many.input_starts.assign(many.vertices.size() + 1, 0);
  expect_refused(std::move(many), "1000000 vertices, over the limit");
  expect_refused(parts_of({{}, std::vector<std::uint32_t>(100'000, 0)}), "100000 inputs, over the limit");
  EXPECT_FALSE(check(MatchQuery{}));
  const auto graph = MatchGraph::build(parts_of({{}, {0}}));
  EXPECT_FALSE(check(MatchQuery{.graph = *graph, .top = 0}));
  EXPECT_FALSE(check(MatchQuery{.graph = *graph, .top = kMatchTopMax + 1}));
  EXPECT_FALSE(check(MatchQuery{.graph = *graph, .least_quality = std::numeric_limits<double>::quiet_NaN()}));
  EXPECT_FALSE(check(MatchQuery{.graph = *graph, .tags = Tags(kMatchTagsMax + 1)}));
  EXPECT_FALSE(check(MatchQuery{.graph = *graph, .pin_by = std::string(1000, 'x')}));
  EXPECT_TRUE(check(MatchQuery{.graph = *graph}));
}

IndexEntry entry(std::uint64_t commit, std::shared_ptr<const MatchGraph> graph) {
  return {.name = {.model = "net", .number = commit},
          .id = {.run = {.high = 1, .low = 1}, .incarnation = 1, .sequence = commit},
          .graph = std::move(graph),
          .commit = commit};
}

// As deep and as wide as a graph may be: nothing recurses, and nothing takes time that grows with the square.
TEST(MatchHostile, DeepAndWideGraphsAreAnswered) {
  constexpr std::uint32_t kDeep = 100'000;
  std::vector<std::vector<std::uint32_t>> deep(kDeep);
  for (std::uint32_t i = 1; i < kDeep; ++i) deep[i] = {i - 1};
  std::vector<std::vector<std::uint32_t>> wide(60'001);
  for (std::uint32_t i = 0; i < 60'000; ++i) wide.back().push_back(i);

  for (const auto& inputs : {deep, wide}) {
    StructureIndex index;
    const auto first = MatchGraph::build(parts_of(inputs));
    auto longer = parts_of(inputs);
    longer.vertices.push_back(vertex(1'000'000));
    longer.inputs.push_back(static_cast<std::uint32_t>(inputs.size() - 1));
    longer.input_starts.push_back(static_cast<std::uint32_t>(longer.inputs.size()));
    const auto second = MatchGraph::build(std::move(longer));
    ASSERT_TRUE(first && second);
    ASSERT_TRUE(index.insert(entry(1, *first), 1));
    EXPECT_EQ(index.match({.graph = *second}).top[0].lcp.layers, inputs.size());
    ASSERT_TRUE(index.insert(entry(2, *second), 2));
    const MatchAnswer answer = index.match({.graph = *second, .top = 5});
    ASSERT_EQ(answer.top.size(), 2u);
    EXPECT_EQ(answer.top[0].lcp.layers, inputs.size() + 1);
    EXPECT_EQ(answer.top[1].lcp.layers, inputs.size());
    EXPECT_TRUE(index.retire(entry(2, nullptr).id, 3));
    EXPECT_EQ(index.match({.graph = *second, .top = 5}).top.size(), 1u);
  }
}

// Damaged records can make one of the lines.
TEST(MatchHostile, ACircleOfAncestorsEnds) {
  StructureIndex index;
  const auto graph = MatchGraph::build(parts_of({{}, {0}}));
  for (std::uint64_t commit = 1; commit <= 4; ++commit) {
    IndexEntry made = entry(commit, *graph);
    made.ancestor = entry(commit == 1 ? 3 : commit - 1, nullptr).id;
    ASSERT_TRUE(index.insert(made, commit));
  }
  EXPECT_EQ(index.match({.graph = *graph, .top = 9}, entry(4, nullptr).id).top.size(), 0u);
  EXPECT_EQ(index.match({.graph = *graph, .top = 9}, entry(2, nullptr).id).top.size(), 1u);
  EXPECT_EQ(index.match({.graph = *graph, .top = 9}, entry(77, nullptr).id).top.size(), 4u);
}

}  // namespace
}  // namespace freshet
