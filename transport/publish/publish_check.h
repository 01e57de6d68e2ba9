// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Checks of PublisherOptions, and of the tensors of a publish against the architecture: the same names, dtypes and
/// shapes in the same order, each with as many bytes as its specification says.

#include <cstdint>
#include <span>

#include "core/base/result.h"
#include "core/model/graph.h"
#include "core/model/tensor.h"
#include "transport/publisher.h"

namespace freshet {

/// invalid_argument names the option.
Status check_options(const PublisherOptions& options);

/// Checks all tensors. failed_precondition names the first one that differs, and both shapes; invalid_argument one
/// whose bytes contradict its own specification.
Status check_tensors(const Architecture& architecture, std::span<const TensorView> tensors);

/// Checks those in `indices` alone: a publish that names few tensors pays for few. invalid_argument for an index out of
/// range.
Status check_tensors(const Architecture& architecture, std::span<const TensorView> tensors,
                     std::span<const std::uint32_t> indices);

}  // namespace freshet
