// SPDX-License-Identifier: Apache-2.0
#pragma once

/// These functions read and write encoded forms without all checks. The caller knows from the digest that the same
/// content passed all checks once. This takes a small part of the time of a read with checks. For a repository's own
/// records.

#include <vector>

#include "core/model/manifest.h"

namespace freshet {

/// Returns the parts as the bytes have them. It does not check them as Architecture::build() does. corrupt: the bytes
/// are no encoded architecture.
Result<Architecture::Parts> decode_architecture_parts(Bytes bytes);

/// Encodes a manifest. The function gets only the digest of the architecture, and does not look at the architecture. If
/// the result has the digest of a manifest that passed check(), the result is that manifest.
std::vector<std::byte> encode_unchecked(const Manifest& manifest, const Digest& architecture);

}  // namespace freshet
