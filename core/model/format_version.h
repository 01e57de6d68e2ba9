// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace freshet {

/// The one number of what Freshet writes: architectures and manifests, the sheets beside exported versions, and
/// repositories (core/FORMAT.md, repo/FORMAT.md). A build reads this number and no other.
inline constexpr std::uint16_t kFormatVersion = 3;

}  // namespace freshet
