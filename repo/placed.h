// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where the bytes of a version are when several providers keep a repository (repo/cluster/): those that it wrote rest
/// with the provider that has its record, its home; those that it inherits stay with the homes of their writers.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace freshet {

/// What a version's record says about it. Never changes.
struct Placed {
  std::uint64_t placement = 0;  ///< The number under which its inherited segments are found, and from 1.
  /// Tells this put of the version from others that were begun and given up.
  std::uint64_t attempt = 0;
  std::vector<std::uint32_t> elsewhere;  ///< Tensors whose segments other providers keep; ascending.
  /// Writers whose segments are not where the placement says; ascending.
  struct Moved {
    VersionId writer;
    std::string provider;
    bool operator==(const Moved&) const = default;
  };
  std::vector<Moved> moved;
  bool operator==(const Placed&) const = default;
};

/// invalid_argument when something in it cannot be, for a version of so many tensors.
Status check(const Placed& placed, std::size_t tensors);

bool is_elsewhere(const Placed& placed, std::uint32_t tensor);

}  // namespace freshet
