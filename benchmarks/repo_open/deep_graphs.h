// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Folders of deep models: chains of dense layers with the framework's own words beside each, as a search by mutation
/// leaves them. A child takes over its parent's layers up to the one that it changed, with their weights.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model/graph.h"
#include "repo/repository.h"

namespace freshet::benchmarks {

struct DeepModel {
  std::uint64_t parent = 0;          ///< A model of an earlier number; 0: it has none.
  std::vector<std::uint32_t> units;  ///< Of each layer.
  std::uint32_t inherited = 0;       ///< How many layers it has from its parent.
};

/// Numbered from 1 on; the same for the same numbers.
std::vector<DeepModel> deep_models(std::uint64_t count, std::uint32_t layers);
Result<std::shared_ptr<const Architecture>> deep_architecture(const DeepModel& model);
std::string deep_name(std::uint64_t number);

/// Stores the models, each with its weights of a few bytes, or (without) the graphs alone.
Status put_deep_models(Repository& repository, const std::vector<DeepModel>& models, bool with_weights);

}  // namespace freshet::benchmarks
