// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The state that the example's ranks train. A tensor's bytes follow from its name and the step, so every restart can
/// be compared with what it has to hold.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/layout/layout.h"
#include "core/model/tensor.h"

namespace freshet::ranks {

struct StateTensor {
  LaidTensor laid;
  std::uint64_t every = 1;  ///< Steps between two writes; 0: never written after the start.
};

struct State {
  std::string seed;
  std::vector<StateTensor> tensors;
};

/// The JSON of a state file: {"seed", "tensors": [{"name", "dtype", "shape", "role", "layout", "every"}]}.
/// invalid_argument names what is wrong.
Result<State> parse_state(std::string_view json);

/// The step in which a tensor was written last, as of `step`.
std::uint64_t written_in(const StateTensor& tensor, std::uint64_t step);

/// The bytes of a whole tensor of that name, as written in step `written`: little-endian 64-bit words k + 2654435761·i,
/// the last one cut. `piece` says which of them, `out` has as many.
void fill(const std::string& seed, const std::string& name, std::uint64_t written, const Piece& piece,
          MutableBytes out);

}  // namespace freshet::ranks
