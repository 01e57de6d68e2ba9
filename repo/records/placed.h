// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The place of a version's bytes if several providers keep a repository (repo/cluster/). The provider with the
/// version's record is its home. Segments that the version wrote rest at its home. Inherited segments stay at the homes
/// of their writers.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/model/ids.h"

namespace freshet {

/// The part of a version's record about places. Never changes.
struct Placed {
  std::uint64_t placement = 0;  ///< The number of the placement that finds the inherited segments; from 1.
  /// Distinguishes this put of the version from other puts of it that were begun and given up.
  std::uint64_t attempt = 0;
  std::vector<std::uint32_t> elsewhere;  ///< Tensors whose segments other providers keep; ascending.
  /// Writers whose segments are not at the provider that the placement gives for these writers; ascending.
  struct Moved {
    VersionId writer;
    std::string provider;
    bool operator==(const Moved&) const = default;
  };
  std::vector<Moved> moved;
  bool operator==(const Placed&) const = default;
};

/// invalid_argument if `placed` contradicts the number of tensors.
Status check(const Placed& placed, std::size_t tensors);

bool is_elsewhere(const Placed& placed, std::uint32_t tensor);

}  // namespace freshet
