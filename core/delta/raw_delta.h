// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Element deltas for devices: the same delta in small blocks, with planes as they are
/// (core/gpu/kernels/delta_kernels.h).

#include <cstdint>
#include <vector>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet {

/// A payload of the same changes with the same head, whose blocks have `block_elements_max` elements or fewer, and
/// whose planes have form 0. apply_delta() takes it as it takes the other one. A block costs 12 bytes, and 5 for each
/// plane. corrupt: the payload is damaged. unsupported: a later version of the format wrote it. REQUIRES:
/// block_elements_max > 0; apply_delta() took the payload, so its elements are those of a tensor.
Result<std::vector<std::byte>> raw_delta(Bytes payload, std::uint32_t block_elements_max);

}  // namespace freshet
