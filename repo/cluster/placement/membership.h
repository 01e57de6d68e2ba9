// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How providers come to keep one repository together. The placement is a shared record at each of them. It changes by
/// compare-and-swap, at the providers in the order of their ids and at the one that is new last; so of two who change
/// it at the same time one fails at the first provider, before anybody has heard of it.
///
/// A join pauses puts. From the moment that the others know the new placement until the new provider knows it, nobody
/// gives numbers of the models that are the new one's to number: such puts are `unavailable`, and can be put again. In
/// that pause it is given what the others know of these models (repo/cluster/placement/hand_over.h). Only the new
/// provider itself finishes its join: where it died half-way the pause lasts until it is started again, and nobody else
/// can join.

#include <vector>

#include "repo/cluster/member.h"
#include "repo/provider_repository.h"
#include "repo/records/placement.h"

namespace freshet::cluster {

inline constexpr const char* kSelfKey = "self";  ///< The shared record of a provider's own id.

/// The placement that a provider knows; not_found when it is alone so far.
Result<Placement> placement_at(const ProviderRepository& provider);

/// Makes the providers one repository: placement 1. One alone may have versions, which keep their names and places,
/// numbers and aliases; several are to be empty. failed_precondition when one belongs to another repository; no error
/// when they are this one already.
Result<Placement> form(std::vector<Provider> providers, const Connect& connect);

struct JoinTrace {
  bool told = false;         ///< One of the others may have heard of the provider.
  bool others_join = false;  ///< It failed since another provider joins; it may be tried again.
};

/// Adds a provider, or tells another address of one, on that provider's behalf: nobody else does so at the same time.
/// All others must answer. Doing it again finishes what was begun. `trace`, where it is given, says more of a failure.
Result<Placement> join(const Placement& known, const Provider& provider, const Connect& connect,
                       JoinTrace* trace = nullptr);

/// The newest placement that any of the providers knows. Changes nothing.
Result<Placement> newest_placement(const Placement& known, const Connect& connect);

}  // namespace freshet::cluster
