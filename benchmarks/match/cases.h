// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The catalogs that match is measured on, and the queries for each.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "examples/nas_spaces/nas_spaces.h"
#include "repo/match/graph.h"
#include "repo/match/structure_index.h"

namespace freshet::benchmarks {

/// What a match looks at of a network, made without an Architecture.
class GraphMaker {
 public:
  std::shared_ptr<const MatchGraph> make(const nas::Network& network, const nas::Palette& palette);

 private:
  nas::SlotHasher hasher_;
  std::vector<SlotId> slots_;
};

struct MatchCase {
  std::string name;
  struct Model {
    std::shared_ptr<const MatchGraph> graph;  ///< Models of equal genes share it.
    double quality = 0;
  };
  std::vector<Model> models;
  std::vector<std::shared_ptr<const MatchGraph>> queries;
  /// Makes the architecture of a model, to put it into a repository. A case of a corpus has no such function. The
  /// function of another case reads its space and catalog, which must still exist.
  std::function<Result<std::shared_ptr<const Architecture>>(std::size_t model)> architecture;
};

/// Models of a space; queries are members with one mutation.
MatchCase make_case(const std::string& name, const nas::Space& space, const nas::Catalog& catalog, std::size_t queries);

/// Half of a corpus' graphs is the catalog, the other half asks.
Result<MatchCase> make_corpus_case(const std::string& path);

/// A version as a repository would name it: each candidate a model of its own.
IndexEntry entry_of(const MatchCase& match_case, std::size_t model);

}  // namespace freshet::benchmarks
