// SPDX-License-Identifier: Apache-2.0
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
#include "repo/version_sheet.h"

namespace freshet {

struct StageRequest {
  std::string model;
  /// Null: a chain guessed from the tensors' names. When the ancestor's architecture was guessed too and has every
  /// tensor given, the ancestor's: so a file that leaves unchanged tensors out still makes a whole model.
  std::shared_ptr<const Architecture> architecture;
  /// In the caller's memory, which must stay until the put is done. Absent (not: empty) for a graph without weights.
  std::optional<std::span<const TensorView>> tensors;
  std::optional<VersionName> ancestor;  ///< Number 0: its newest.
  /// The ancestor's record, where it is at hand: in the place of `ancestor`, and nobody is asked for it.
  const VersionRecord* ancestor_record = nullptr;
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
  /// By tensor index, whatever was given: of an inherited tensor too, since where its bytes rest may be away.
  std::vector<std::optional<Bytes>> bytes;

  /// For Repository::put(); valid as long as this is.
  std::function<Result<Bytes>(std::uint32_t tensor)> bytes_of() const;
};

/// The identity of a version that belongs to no publisher's run: a run of its own, of one version.
Result<VersionId> draw_version_id();

/// A tensor is inherited when its layer lies in the longest common prefix with the ancestor (its slot id is among the
/// ancestor's) and the file leaves it out or holds bytes of the same digest. Any other tensor must be given, with the
/// graph's dtype and shape.
///
/// Errors: invalid_argument names the tensor that is missing, unknown, given twice or of another shape, or says that
/// there is neither a graph nor a tensor; not_found for the ancestor.
Result<StagedPut> stage_put(const Repository& repository, const StageRequest& request);

/// A version as a repository exported it, with what lay beside its sheet.
struct RestoreRequest {
  const VersionSheet* sheet = nullptr;
  /// Null: guessed from the tensors, as it was guessed before.
  std::shared_ptr<const Architecture> architecture;
  /// As in StageRequest; absent for one without weights.
  std::optional<std::span<const TensorView>> tensors;
  bool deltas = false;  ///< As in Repository::PutOptions.
};

struct Restored {
  VersionName name;        ///< Its number is that of the sheet, unless the model has given it to another one.
  bool was_there = false;  ///< Nothing was done.
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
};

/// Of a version that is to be restored: what tells when its turn comes.
struct RestorePlace {
  VersionName name;
  VersionId id;
  std::optional<VersionId> ancestor;
  std::int64_t created_unix_ns = 0;
};
/// In which order (as indices) versions are restored so that numbers stay, and after that, lines: the smaller numbers
/// of a model first, ancestors before those who came from them, and otherwise the older ones.
std::vector<std::size_t> restore_order(std::span<const RestorePlace> places);

/// Puts it as it was: what it inherited is inherited again from whoever brings these segments first, so versions may
/// come in any order; numbers and lines are kept best when ancestors and smaller numbers come first.
///
/// Errors: corrupt when graph or bytes are not those that the sheet speaks of; failed_precondition when the version was
/// retired here; already_exists when another version goes by its identity; those of Repository::put().
Result<Restored> restore_version(Repository& repository, const RestoreRequest& request);

}  // namespace freshet
