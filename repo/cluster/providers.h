// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Providers by their addresses: opening the repository that they keep together, and becoming one of them.

#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "repo/provider_repository.h"
#include "repo/records/placement.h"
#include "repo/serve/remote_repository.h"

namespace freshet {

/// Opens what is kept at `addresses`, several with a comma between them, of which one must answer: all providers of the
/// placement that it tells, or, when it is alone, itself. unavailable when nobody answers; failed_precondition, naming
/// it, when one of several answers that keeps another repository than the others, or one of its own.
Result<std::unique_ptr<Repository>> open_providers(const std::string& addresses,
                                                   const RemoteRepositoryOptions& options = {});

/// This provider's id, made up and kept when it has none yet.
Result<std::string> provider_id(ProviderRepository& own);

/// Makes the repository `own`, which is offered to others at `address`, one of the providers that somebody at `joined`
/// (as open_providers() takes it) belongs to; two that were alone so far become the first ones. Doing it again changes
/// nothing, or the address: then all others must answer, where the placement says that they are.
/// failed_precondition for one that has models of its own already. `known`, where it is given,
/// becomes true before anybody can hear that this one belongs to them, also when it then fails.
Result<Placement> join_providers(ProviderRepository& own, const std::string& address, const std::string& joined,
                                 const RemoteRepositoryOptions& options = {}, bool* known = nullptr);

}  // namespace freshet
