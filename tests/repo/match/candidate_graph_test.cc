// SPDX-License-Identifier: Apache-2.0
/// Match graphs of candidates through a cache of configs: the same as those of architectures, whatever was seen before.

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "repo/match/graph.h"

namespace freshet {
namespace {

/// A random graph of few different configs; some layers call earlier ones' parameters again.
Architecture::Parts random_parts(std::mt19937_64& random) {
  Architecture::Parts parts;
  parts.layers.push_back({.name = "x", .class_name = "Input", .config = R"({"shape":[8]})"});
  parts.layers.push_back({.name = "y", .class_name = "Input", .config = R"({"shape":[8]})"});
  const std::size_t layers = 3 + random() % 20;
  for (std::size_t i = 2; i < layers; ++i) {
    Layer layer{.name = "l" + std::to_string(i), .class_name = random() % 4 == 0 ? "Add" : "Dense"};
    // Not canonical: white space, an integer written as a fraction.
    layer.config = random() % 5 == 0 ? "{}" : R"({"units": )" + std::to_string(random() % 3) + R"(.0, "a":1})";
    for (std::size_t n = random() % 3 + 1; n > 0; --n) {
      layer.inputs.push_back({.layer = static_cast<std::uint32_t>(random() % i), .port = random() % 5 == 0 ? 1u : 0u});
    }
    if (random() % 6 == 0) {
      layer.tensors_of = static_cast<std::uint32_t>(random() % i);
    } else if (random() % 2 == 0) {
      layer.tensors.push_back({.name = "kernel", .tensor = static_cast<std::uint32_t>(parts.tensors.size())});
      parts.tensors.push_back({.name = layer.name + ".kernel", .dtype = DType::f32, .shape = {8, 1 + random() % 2}});
    }
    parts.layers.push_back(std::move(layer));
  }
  return parts;
}

void expect_same(const MatchGraph& graph, const MatchGraph& expected) {
  ASSERT_EQ(graph.size(), expected.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    EXPECT_EQ(graph[i].slot, expected[i].slot) << i;
    EXPECT_EQ(graph[i].is_input, expected[i].is_input);
    EXPECT_EQ(graph[i].parametric, expected[i].parametric);
    EXPECT_EQ(graph[i].bytes, expected[i].bytes);
  }
  EXPECT_EQ(graph.parts().inputs, expected.parts().inputs);
  EXPECT_EQ(graph.whole(), expected.whole());
}

TEST(CandidateGraph, IsThatOfTheArchitecture) {
  std::mt19937_64 random(11);
  ConfigHashes known;
  ConfigHashes tiny(3);  // Forgets all the time.
  for (int round = 0; round < 300; ++round) {
    const Architecture::Parts parts = random_parts(random);
    const auto architecture = Architecture::build(parts);
    ASSERT_TRUE(architecture) << architecture.error().message();
    const auto expected = MatchGraph::of(**architecture);
    for (ConfigHashes* cache : {&known, &tiny}) {
      const auto graph = MatchGraph::of(parts, *cache);
      ASSERT_TRUE(graph) << graph.error().message();
      expect_same(**graph, *expected);
    }
  }
  EXPECT_GT(known.hits(), 10 * known.misses());
  EXPECT_GT(tiny.misses(), known.misses());
}

TEST(CandidateGraph, ThreadsShareACache) {
  ConfigHashes known(5);
  std::vector<std::jthread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&known, thread] {
      std::mt19937_64 random(thread % 2);
      for (int round = 0; round < 50; ++round) {
        const Architecture::Parts parts = random_parts(random);
        expect_same(**MatchGraph::of(parts, known), *MatchGraph::of(**Architecture::build(parts)));
      }
    });
  }
}

TEST(CandidateGraph, RefusesWhatIsNoGraph) {
  ConfigHashes known;
  const auto refusal = [&](const Architecture::Parts& parts) {
    const auto graph = MatchGraph::of(parts, known);
    EXPECT_FALSE(graph);
    return graph ? "" : graph.error().message();
  };
  Architecture::Parts parts;
  parts.layers.push_back({.name = "a", .class_name = "Dense", .inputs = {{.layer = 0}}});
  EXPECT_EQ(refusal(parts), "layer a: an input does not come from an earlier layer");
  parts.layers[0].inputs.clear();
  parts.layers[0].config = "[1]";
  EXPECT_EQ(refusal(parts), "layer a: config is not a JSON object");
  parts.layers[0].config = "{";
  EXPECT_NE(refusal(parts), "");
  parts.layers[0].config = "";
  parts.layers[0].tensors.push_back({.name = "kernel", .tensor = 0});
  EXPECT_EQ(refusal(parts), "layer a: it names a tensor that the graph does not have");
  parts.layers[0].tensors.clear();
  parts.layers[0].tensors_of = 0;
  EXPECT_EQ(refusal(parts), "layer a: tensors_of does not name an earlier layer");
}

}  // namespace
}  // namespace freshet
