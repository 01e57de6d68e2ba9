#pragma once

/// Makes a version out of what a person has at hand: a graph, a file of tensors, and the model that it was transferred
/// from. `freshet repo put` is this and Repository::put():
///
///     FRESHET_ASSIGN(StagedPut staged, stage_put(repository, {.model = "net", .tensors = file.tensors()}));
///     FRESHET_ASSIGN(VersionName name, repository.put(staged.manifest, staged.bytes_of(), staged.options));

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/graph.h"
#include "core/manifest.h"
#include "core/result.h"
#include "core/tensor.h"
#include "repo/repository.h"

namespace freshet {

struct StageRequest {
  std::string model;
  /// Null: a chain guessed from the tensors' names. When the ancestor's architecture was guessed too and has every
  /// tensor given, the ancestor's: so a file that leaves unchanged tensors out still makes a whole model.
  std::shared_ptr<const Architecture> architecture;
  /// In the caller's memory, which must stay until the put is done. Absent (not: empty) for a graph without weights.
  std::optional<std::span<const TensorView>> tensors;
  std::optional<VersionName> ancestor;  ///< Number 0: its newest.
  std::optional<double> quality;
  std::uint64_t step = 0;
  Metrics metrics;
  std::vector<std::pair<std::string, std::string>> tags;
  const Clock* clock = nullptr;
  bool dedup = false;  ///< As in Repository::PutOptions.
  bool deltas = false;
};

/// A version that is ready to be put. Movable; borrows the request's tensors.
struct StagedPut {
  Manifest manifest;  ///< Its number is 0: the repository gives the next one.
  Repository::PutOptions options;
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
  std::vector<Bytes> bytes;  ///< By tensor index; empty where the tensor is inherited.

  /// For Repository::put(); valid as long as this is.
  std::function<Result<Bytes>(std::uint32_t tensor)> bytes_of() const;
};

/// A tensor is inherited when its layer lies in the longest common prefix with the ancestor (its slot id is among the
/// ancestor's) and the file leaves it out or holds bytes of the same digest. Any other tensor must be given, with the
/// graph's dtype and shape.
///
/// Errors: invalid_argument names the tensor that is missing, unknown, given twice or of another shape, or says that
/// there is neither a graph nor a tensor; not_found for the ancestor.
Result<StagedPut> stage_put(const Repository& repository, const StageRequest& request);

}  // namespace freshet
