// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Encoded forms whose digest is known to be that of something that passed all checks once: reading them without making
/// these checks again costs a small part of that. For a repository's own records.

#include <vector>

#include "core/model/manifest.h"

namespace freshet {

/// The parts as they stand there; whether they passed Architecture::build() is not looked at. corrupt for what is no
/// encoded architecture.
Result<Architecture::Parts> decode_architecture_parts(Bytes bytes);

/// encode() of a manifest whose architecture is known by its digest alone, and not looked at. What has the digest of a
/// manifest that passed check() is that manifest.
std::vector<std::byte> encode_unchecked(const Manifest& manifest, const Digest& architecture);

}  // namespace freshet
