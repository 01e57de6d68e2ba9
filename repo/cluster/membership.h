#pragma once

/// How providers come to keep one repository together. The placement is a shared record at each of them. It changes by
/// compare-and-swap, at the providers in the order of their ids and at those that are new last; so two who change it at
/// the same time meet at the first provider, and one who dies half-way leaves a change that whoever comes next
/// finishes. A new provider learns of the placement last, when all others have stopped to number what is numbered by it
/// from then on, and after it was given what they know of that (repo/cluster/hand_over.h).

#include <vector>

#include "repo/cluster/member.h"
#include "repo/cluster/placement.h"

namespace freshet::cluster {

inline constexpr const char* kSelfKey = "self";  ///< The shared record of a provider's own id.

/// The placement that a provider knows; not_found when it is alone so far.
Result<Placement> placement_at(Repository& provider);

/// Makes the providers one repository: placement 1. failed_precondition when one belongs to another one; no error when
/// they are this one already. Versions that a provider has keep their names and places, numbers go on, and aliases are
/// kept; already_exists when two providers have a model of the same name. While several are formed at once, nobody else
/// may use them.
Result<Placement> form(std::vector<Provider> providers, const Connect& connect);

/// Adds a provider, or tells another address of one. All others must answer. Providers that join at the same time come
/// in one after the other. Where it fails, `told`, if it is given, becomes true when one of them may have heard of the
/// provider.
Result<Placement> join(const Placement& known, const Provider& provider, const Connect& connect, bool* told = nullptr);

/// The newest placement that any of the providers knows; brings those that lag up to it, as far as they answer.
Result<Placement> newest_placement(const Placement& known, const Connect& connect);

}  // namespace freshet::cluster
