// SPDX-License-Identifier: Apache-2.0
/// What the benchmark `match` compares answers alike: EvoStore's Algorithm 1, Redis-Queries and the index find prefixes
/// of the same length, on catalogs of every space.

#include <gtest/gtest.h>

#include "benchmarks/match/algorithm1.h"
#include "benchmarks/match/cases.h"
#include "benchmarks/redis_queries/redis_queries.h"

namespace freshet::benchmarks {
namespace {

constexpr std::size_t kModels = 300;
constexpr std::size_t kQueries = 60;

std::vector<MatchCase> small_cases() {
  std::vector<MatchCase> cases;
  std::vector<std::unique_ptr<nas::Space>> spaces;
  spaces.push_back(nas::make_dense_skip_space());
  spaces.push_back(nas::make_two_input_space());
  spaces.push_back(nas::make_nas_bench_201_space());
  spaces.push_back(nas::make_chain_space(15));
  spaces.push_back(nas::make_star_space());
  for (const auto& space : spaces) {
    const std::string name(space->name());
    cases.push_back(make_case(name + " random", *space, nas::random_catalog(*space, kModels, 3), kQueries));
    const nas::EvolvedOptions options{.seed = 4, .population = 20, .per_search = kModels / 2};
    cases.push_back(make_case(name + " evolved", *space, nas::evolved_catalog(*space, kModels, options), kQueries));
  }
  return cases;
}

std::unique_ptr<StructureIndex> index_of(const MatchCase& match_case) {
  auto index = std::make_unique<StructureIndex>();
  for (std::size_t i = 0; i < match_case.models.size(); ++i) {
    EXPECT_TRUE(index->insert(entry_of(match_case, i), i + 1));
  }
  return index;
}

MatchAnswer answer_of(const StructureIndex& index, const std::shared_ptr<const MatchGraph>& graph) {
  MatchQuery query;
  query.graph = graph;
  return index.match(query);
}

std::uint64_t layers_of(const MatchAnswer& answer) { return answer.top.empty() ? 0 : answer.top[0].lcp.layers; }

TEST(MatchPeers, Algorithm1FindsPrefixesOfTheSameLength) {
  for (const MatchCase& match_case : small_cases()) {
    const auto index = index_of(match_case);
    Algorithm1 peer;
    for (const auto& model : match_case.models) peer.add(*model.graph);
    std::uint64_t found = 0;
    for (std::size_t i = 0; i < match_case.queries.size(); ++i) {
      const std::uint64_t layers = layers_of(answer_of(*index, match_case.queries[i]));
      ASSERT_EQ(peer.best(*match_case.queries[i]).layers, layers) << match_case.name << ", query " << i;
      found += layers;
    }
    EXPECT_GT(found, kQueries) << match_case.name << ": mutated members share something with their catalog";
  }
}

TEST(MatchPeers, RedisQueriesFindTheSameAncestor) {
  for (const MatchCase& match_case : small_cases()) {
    const auto index = index_of(match_case);
    for (const RedisQueries::Form form : {RedisQueries::Form::packed, RedisQueries::Form::json}) {
      const auto server = RedisServer::start();
      if (!server) GTEST_SKIP() << server.error().message();
      const auto client = RedisQueries::connect(**server, form);
      ASSERT_TRUE(client) << client.error().message();
      std::vector<RedisQueries::Model> models;
      for (std::size_t i = 0; i < match_case.models.size(); ++i) {
        const auto& model = match_case.models[i];
        models.push_back({.name = entry_of(match_case, i).name.model, .graph = model.graph, .quality = model.quality});
      }
      ASSERT_TRUE((*client)->publish(models));
      for (std::size_t i = 0; i < 5; ++i) {
        const MatchAnswer answer = answer_of(*index, match_case.queries[i]);
        const auto best = (*client)->query(*match_case.queries[i]);
        ASSERT_TRUE(best) << best.error().message();
        ASSERT_EQ(*best ? (*best)->layers : 0, layers_of(answer)) << match_case.name << ", query " << i;
        if (*best) {
          EXPECT_EQ((*best)->quality, answer.top[0].quality);
        }
      }
    }
  }
}

TEST(MatchPeers, AModelLeavesRedisWithItsLastReference) {
  const auto server = RedisServer::start();
  if (!server) GTEST_SKIP() << server.error().message();
  const auto client = RedisQueries::connect(**server, RedisQueries::Form::packed);
  ASSERT_TRUE(client) << client.error().message();
  const auto space = nas::make_dense_skip_space();
  const MatchCase one = make_case("one", *space, nas::random_catalog(*space, 1, 1), 0);
  const auto& graph = one.models[0].graph;
  ASSERT_TRUE((*client)->publish({{.name = "only", .graph = graph, .quality = 0.5}}));
  const auto held = (*client)->query(*graph);
  ASSERT_TRUE(held && *held);
  EXPECT_EQ((*client)->release("only").value(), false) << "its own reference remains";
  EXPECT_EQ((*client)->release("only").value(), true);
  EXPECT_FALSE((*client)->query(*graph).value());
}

}  // namespace
}  // namespace freshet::benchmarks
