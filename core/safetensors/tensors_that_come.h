// SPDX-License-Identifier: Apache-2.0
#pragma once

/// safetensors files whose tensors come while they are written.

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "core/safetensors/safetensors.h"

namespace freshet {

/// write_safetensors() (core/safetensors/safetensors.h) with tensors whose bytes come meanwhile: `ready(i)` returns when
/// those of tensor i are there; they stay until a later tensor is asked for. Its error ends the writing, and is
/// returned.
Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync,
                         const std::function<Status(std::size_t tensor)>& ready);

}  // namespace freshet
