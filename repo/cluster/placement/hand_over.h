// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The hand-over to a new provider, before it hears of the placement that it came with. The provider is the registrar
/// of some models from then on, so it needs the records of their former registrars: last numbers, and aliases.
///
/// Only a new provider takes models over, and each from the one who was their registrar before it came. So whoever
/// knows a placement has all records of what is his under it, and nobody else needs to be asked, or to be there.
///
/// The new provider does this alone, and may die and do it again: those that give change nothing of it any more, since
/// they know of the new placement. Private to this room.

#include "repo/cluster/member.h"
#include "repo/records/placement.h"

namespace freshet::cluster {

/// REQUIRES: all others of the placement know it, so that none of them changes these records any more. All of them must
/// answer. Nothing is done for a provider that knows a placement of its own time, or a later one.
Status hand_over(const Placement& placement, const Provider& to, const Connect& connect);

}  // namespace freshet::cluster
