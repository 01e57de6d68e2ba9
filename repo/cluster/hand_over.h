#pragma once

/// What a new provider is told before it hears of the placement that it came with. It is the registrar of some models
/// from then on, so it needs the records that their former registrars keep of them: last numbers, and aliases.
///
/// Only a new provider takes models over, and each from the one who was their registrar before it came. So whoever
/// knows a placement has all records of what is his under it, and nobody else needs to be asked, or to be there.
///
/// Any number may do this at the same time, and any of them may die: each write expects that the new provider still
/// knows no placement, and that what it replaces was read before what it writes. Private to this room.

#include "repo/cluster/member.h"
#include "repo/cluster/placement.h"

namespace freshet::cluster {

/// Numbers only, which will be outrun: so that less is left to be done while nobody gives numbers. And reads the rest,
/// so that what cannot be read is found before anybody is told.
Status hand_over_early(const Placement& placement, const Provider& to, const Connect& connect);

/// REQUIRES: all others of the placement know it, so that none of them changes these records any more. All of them must
/// answer. Nothing is done for a provider that knows a placement of its own time, or a later one.
Status hand_over(const Placement& placement, const Provider& to, const Connect& connect);

/// Of a placement that was just formed: gives what each numbered while it was alone to the models' registrars. Doing it
/// again changes nothing.
Status hand_out(const Placement& placement, const Connect& connect);

}  // namespace freshet::cluster
