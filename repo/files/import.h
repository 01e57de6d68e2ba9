// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Makes a version from a graph, a file of tensors, and the ancestor that the model was transferred from.
/// `freshet repo put` is stage_and_put():
///
///     FRESHET_ASSIGN(StagedPut staged, stage_put(repository, {.model = "net", .tensors = file.tensors()}));
///     FRESHET_ASSIGN(VersionName name, repository.put(staged.manifest, staged.bytes_of(), staged.options));

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"
#include "core/safetensors/model_file.h"
#include "repo/files/version_sheet.h"
#include "repo/repository.h"

namespace freshet {

struct StageRequest {
  std::string model;
  /// Null: the version gets a chain that is guessed from the tensors' names. There is one exception: if the ancestor's
  /// architecture was guessed too, and has every given tensor, the version gets the ancestor's architecture. So a file
  /// without the unchanged tensors still makes a whole model.
  std::shared_ptr<const Architecture> architecture;
  /// In the caller's memory, which must stay until the put is done. Absent (not: empty) for a graph without weights.
  std::optional<std::span<const TensorView>> tensors;
  std::optional<VersionName> ancestor;  ///< Number 0: its newest.
  /// The ancestor's record, if the caller has it. It replaces `ancestor`, and saves a question to the repository.
  const VersionRecord* ancestor_record = nullptr;
  std::optional<double> quality;
  std::uint64_t step = 0;
  Metrics metrics;
  Tags tags;
  const Clock* clock = nullptr;
  bool dedup = false;  ///< As in Repository::PutOptions.
  bool deltas = false;
};

/// A version that is ready for put(). Movable; borrows the request's tensors.
struct StagedPut {
  Manifest manifest;  ///< Its number is 0: the repository gives the next one.
  Repository::PutOptions options;
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
  /// All given bytes, by tensor index. Also those of inherited tensors, because the provider of their bytes may be
  /// away.
  std::vector<std::optional<Bytes>> bytes;

  /// For Repository::put(); valid as long as this object.
  std::function<Result<Bytes>(std::uint32_t tensor)> bytes_of() const;
};

/// The identity of a version that belongs to no publisher's run: a new run with one version.
Result<VersionId> draw_version_id();

/// A version inherits a tensor on two conditions. The tensor's layer lies in the longest common prefix with the
/// ancestor (the ancestor has its slot id, and cuts the tensor into the same slice). And the file leaves the tensor
/// out, or holds bytes of the same digest. Any other tensor must be given, with the graph's dtype and shape.
///
/// Errors: invalid_argument (the message names the tensor that is missing, unknown, given twice or of another shape; or
/// there is neither a graph nor a tensor); not_found for the ancestor.
Result<StagedPut> stage_put(const Repository& repository, const StageRequest& request);

struct StoredPut {
  VersionName name;
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
};

/// stage_put() and Repository::put(). `file`, which may be null, has the request's tensors. Errors also: unavailable
/// when the file changed before all of it was stored.
Result<StoredPut> stage_and_put(Repository& repository, const StageRequest& request, const ModelFile* file);

/// An exported version: its sheet, and the files beside the sheet.
struct RestoreRequest {
  const VersionSheet* sheet = nullptr;
  /// Null: guessed from the tensors, as before the export.
  std::shared_ptr<const Architecture> architecture;
  /// As in StageRequest; absent for a version without weights.
  std::optional<std::span<const TensorView>> tensors;
  bool deltas = false;  ///< As in Repository::PutOptions.
};

struct Restored {
  VersionName name;        ///< With the sheet's number, unless the model has given this number or a greater one.
  bool was_there = false;  ///< True: the version was there, and nothing was done.
  std::uint64_t own_bytes = 0;
  std::uint64_t inherited_bytes = 0;
};

/// The facts that decide a version's place in the order of restoring.
struct RestorePlace {
  VersionName name;
  VersionId id;
  std::optional<VersionId> ancestor;
  std::int64_t created_unix_ns = 0;
};
/// The order (as indices) in which to restore versions. It first keeps numbers, then lineages: the smaller numbers of a
/// model first, ancestors before their descendants, and otherwise the older versions first.
std::vector<std::size_t> restore_order(std::span<const RestorePlace> places);

/// Restores an exported version. It inherits the same segments as before the export. The first restored version that
/// names a segment brings the segment's bytes. So versions may come in any order. Numbers and lineages are kept best if
/// ancestors and smaller numbers come first.
///
/// Errors: invalid_argument (`tensors` is absent for a version with weights, or given for one without); corrupt (graph
/// or bytes do not match the sheet's digests); failed_precondition (the version was retired here); already_exists
/// (another version has its identity); those of Repository::put().
Result<Restored> restore_version(Repository& repository, const RestoreRequest& request);

}  // namespace freshet
