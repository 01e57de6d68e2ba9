// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Shared records by which the providers of one repository (repo/cluster/) agree: the placement, at each of them, and
/// what the registrar of a model keeps of it, the last number that was given and what its aliases mean.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "repo/provider_repository.h"

namespace freshet {

inline constexpr const char* kPlacementKey = "placement";
/// The model's name comes after this.
inline constexpr const char* kNumberPrefix = "number/";
inline constexpr const char* kAliasesPrefix = "aliases/";

SharedRecord number_record(const std::string& model, VersionNumber last);
/// 0 where the record is not there.
Result<VersionNumber> last_number(const SharedRecord& record);

/// The number of a model's next version. out_of_space when `last` is the greatest number.
Result<VersionNumber> number_after(const std::string& model, VersionNumber last);

/// Whether they are of numbers, and the first one is the greater.
Result<bool> is_greater_number(const SharedRecord& one, const SharedRecord& other);

/// Shared records in a change that only counts. A put over several providers expects two and changes one.
inline constexpr std::size_t kCountedMax = 16;
/// Whether the change only lets numbers grow, each from what is expected of it: above kGivenNumberMax one by one, so
/// nobody who may only count uses up a model's numbers.
bool only_counts(std::span<const SharedRecord> expected, std::span<const SharedRecord> changes);

/// Without aliases, without a value.
SharedRecord aliases_record(const std::string& model, const std::vector<Alias>& aliases);
Result<std::vector<Alias>> parse_aliases(const SharedRecord& record);

}  // namespace freshet
