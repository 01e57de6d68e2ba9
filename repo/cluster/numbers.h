#pragma once

/// Version numbers of a model whose versions are spread over providers. One of them, the model's registrar, keeps the
/// last number that was given, durably, and gives the next one only while the placement that made it the registrar is
/// the one that it knows: so no number is given twice, also while a provider is added. Private to this room.

#include <functional>
#include <string>

#include "repo/cluster/placement.h"
#include "repo/repository.h"

namespace freshet::cluster {

/// The last number that was given by a former registrar, for a registrar that begins. 0 for none.
using FormerLast = std::function<Result<VersionNumber>()>;

/// Gives the model's next number, or `wanted` where that is greater. failed_precondition when the registrar knows
/// another placement.
Result<VersionNumber> next_number(Repository& registrar, const Placement& placement, const std::string& model,
                                  VersionNumber wanted, const FormerLast& former);

/// Says that the model has numbers up to `last`, given before there were several providers.
Status start_numbers(Repository& registrar, const Placement& placement, const std::string& model, VersionNumber last);

/// The last number that this provider gave; 0 for none.
Result<VersionNumber> last_number(Repository& registrar, const std::string& model);

}  // namespace freshet::cluster
