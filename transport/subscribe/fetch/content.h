// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The content of a segment: its writer, its size and its digest. The name alone would do among peers that never lie;
/// with the digest, one that gives a name twice gets nothing mixed.

#include <cstdint>

#include "core/model/manifest.h"

namespace freshet::detail {

struct Content {
  SegmentName name;
  Digest digest;
  std::uint64_t bytes = 0;
  bool operator==(const Content&) const = default;
};

/// What a tensor of that version must be.
inline Content content_of(const Manifest& manifest, std::uint32_t tensor) {
  return {.name = manifest.owners[tensor],
          .digest = manifest.digests[tensor],
          .bytes = manifest.architecture->tensors()[tensor].bytes()};
}

}  // namespace freshet::detail
