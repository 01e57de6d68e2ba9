// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Version numbers of a model whose versions are spread over providers. One of them, the model's registrar, keeps the
/// last number that was given, durably, and gives the next one only while the placement that made it the registrar is
/// the one that it knows: so no number is given twice, also while a provider is added
/// (repo/cluster/placement/hand_over.h). Private to this room.

#include <string>

#include "repo/provider_repository.h"
#include "repo/records/placement.h"

namespace freshet::cluster {

/// Gives the model's next number, or `wanted` where that is greater. failed_precondition when the registrar knows
/// another placement. invalid_argument for a `wanted` above kGivenNumberMax; out_of_space when no number is left.
Result<VersionNumber> next_number(ProviderRepository& registrar, const Placement& placement, const std::string& model,
                                  VersionNumber wanted);

}  // namespace freshet::cluster
