// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A training run goes on from a version of a repository, after a crash or on another day:
///
///     FRESHET_ASSIGN(const Resumed resumed, resume(*repository, "net", memory));
///     FRESHET_ASSIGN(const auto publisher, Publisher::open({.model = "net", .resume_from = resumed.manifest}));
///     for (std::uint64_t step = resumed.step + 1; …

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "core/model/manifest.h"
#include "core/model/tensor.h"
#include "repo/repository.h"

namespace freshet {

/// A tensor in the memory of a training loop, which writes it.
struct TensorMemory {
  TensorSpec spec;
  MutableBytes data;  ///< spec.bytes() long.
};

/// The same tensors for Publisher::publish().
std::vector<TensorView> views_of(std::span<const TensorMemory> tensors);

/// The state that a run goes on from.
struct Resumed {
  /// For PublisherOptions::resume_from. Null: the repository has no version of the model, and nothing was read.
  std::shared_ptr<const Manifest> manifest;
  std::uint64_t step = 0;  ///< The version's; 0 for a new run.
};

/// Reads the newest version of a model ("net") that has weights, or one version ("net@3"), into `tensors`. Each tensor
/// is proved by its digest. A tensor of the version that is not among `tensors` is not read.
///
/// Errors: not_found, "net@3" is not there; failed_precondition, the version has no such tensor or one of another form
/// (nothing was written); invalid_argument, a tensor's memory has another size than its spec; corrupt and others of
/// Repository::read() (some tensors may be written).
Result<Resumed> resume(const Repository& repository, const std::string& version, std::span<const TensorMemory> tensors);

}  // namespace freshet
