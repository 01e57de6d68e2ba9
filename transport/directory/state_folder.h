// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The user's folder for small facts that must outlive a restart of the host, as the XDG base directory specification
/// has it: $XDG_STATE_HOME/freshet, else $HOME/.local/state/freshet. The run folder does not: a logout or a restart
/// empties it.

#include <string>

#include "core/base/result.h"

namespace freshet {

/// Its path, made (mode 0700) if it is missing, with the folders above it. not_found if the environment names no place.
/// Any thread.
Result<std::string> make_state_folder();

}  // namespace freshet
