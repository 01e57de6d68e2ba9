// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Graphs as values in Redis. Private to this folder.

#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/redis_queries/redis_queries.h"

namespace freshet::benchmarks {

/// What a query reads of a model.
struct ReadGraph {
  double quality = 0;
  std::vector<SlotId> slots;
};

std::string write_graph(const MatchGraph& graph, double quality, RedisQueries::Form form);
Status read_graph(std::string_view text, RedisQueries::Form form, ReadGraph& out);

}  // namespace freshet::benchmarks
