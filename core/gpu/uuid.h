// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A device's UUID: its name on every host and in every process. Ordinals are no names: CUDA_VISIBLE_DEVICES renumbers
/// them.

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet::gpu {

struct Uuid {
  std::array<std::uint8_t, 16> bytes{};

  auto operator<=>(const Uuid&) const = default;

  /// "GPU-3f2a…-…", lower case: as NVIDIA's tools print it. Of a MIG device they print "MIG-3f2a…-…", and text() does
  /// not: the driver does not say which of both a device is.
  std::string text() const;

  /// Reads text(), in either case, with or without "GPU-". invalid_argument for other text; for "MIG-…" the message
  /// gives the name to write.
  static Result<Uuid> parse(std::string_view text);
};

}  // namespace freshet::gpu
