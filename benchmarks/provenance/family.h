// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that the lineage cases ask about: a line of ancestors that parts in the middle into two.

#include <cstdint>
#include <string>
#include <vector>

namespace freshet::benchmarks {

/// Versions count from 1; 0 is nobody. Each comes after its ancestor.
struct Family {
  std::vector<std::uint64_t> ancestor;  ///< By version; [0] is unused.
  std::uint64_t parting = 0;
  std::uint64_t end_a = 0;  ///< Two leaves, both `depth` versions deep, counting themselves.
  std::uint64_t end_b = 0;

  static Family of_depth(std::uint64_t depth) {
    Family family;
    family.parting = depth / 2;
    family.end_a = depth;
    family.end_b = depth + (depth - family.parting);
    family.ancestor.push_back(0);
    for (std::uint64_t version = 1; version <= depth; ++version) family.ancestor.push_back(version - 1);
    family.ancestor.push_back(family.parting);
    for (std::uint64_t version = depth + 2; version <= family.end_b; ++version) family.ancestor.push_back(version - 1);
    return family;
  }
  std::uint64_t versions() const { return ancestor.size() - 1; }
};

/// Long enough not to fit into a string object, as a search's candidates are named.
inline std::string model_name() { return "regularized-evolution-candidate"; }

}  // namespace freshet::benchmarks
