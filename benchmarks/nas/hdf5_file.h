// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A model as an HDF5 file: a group for each layer, named by its slot id, with a dataset for each of its tensors. The C
/// library, without Python above it.

#include <string>

#include "core/base/result.h"
#include "examples/nas_evolution/candidate.h"

namespace freshet::benchmarks {

/// Writes every tensor, and closes the file. Not synced, as Keras does not either.
Status write_model(const std::string& path, const nas::Candidate& candidate);

/// Reads the tensors of all layers that the file has too into the candidate, and freezes them. How many there were.
Result<std::size_t> read_shared_layers(const std::string& path, nas::Candidate& candidate);

}  // namespace freshet::benchmarks
