// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Providers by their addresses: opening the repository that they keep together, and becoming one of them.

#include <memory>
#include <string>

#include "core/base/result.h"
#include "repo/provider_repository.h"
#include "repo/records/placement.h"
#include "repo/serve/remote_repository.h"

namespace freshet {

/// Opens the repository at `addresses`: one address, or several with commas, of which one must answer. Opens all
/// providers of this provider's placement; a provider without a placement is opened alone. unavailable: no address
/// answers. failed_precondition: an address belongs to another repository, or to a separate one; the message names it.
Result<std::unique_ptr<Repository>> open_providers(const std::string& addresses,
                                                   const RemoteRepositoryOptions& options = {});

/// This provider's id. If it has none yet, the call makes one and stores it.
Result<std::string> provider_id(ProviderRepository& own);

/// Joins the repository `own`, served at `address`, to the providers at `joined` (as open_providers() takes it). If the
/// other one was alone, these two are the first providers of a placement. A second join changes nothing but the
/// address; for a new address, all other providers must answer at their addresses in the placement.
/// failed_precondition: `own` has models already. `known`, if given, becomes true before another
/// provider can learn of this one, also if the join then fails.
Result<Placement> join_providers(ProviderRepository& own, const std::string& address, const std::string& joined,
                                 const RemoteRepositoryOptions& options = {}, bool* known = nullptr);

}  // namespace freshet
