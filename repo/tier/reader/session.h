// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The tiers, as this process sees them: the board of the config that FRESHET_TIER names, mapped at the first open that
/// asks. A process without one does nothing. Any thread, signal handlers too: nothing waits, and of two threads that
/// begin at once one throws its mapping away.

#include "repo/tier/board.h"

namespace freshet::tier::reader {

/// The board, or nullptr when there is none: this process is then left alone. A process that became another user since
/// the board was found gives its mapping up, and is left alone from then on.
tier::Board* board();

/// Whether the board's keeper is there: its lock goes with it, however it ends. Its process number may be another's by
/// then.
bool has_keeper();

/// Asks the keeper for a copy of the file with that absolute path of `bytes` bytes. A keeper that is not there, or has
/// too much to do, is not waited for.
void ask_for_copy(const char* path, unsigned long bytes);

/// Tells the keeper that the file was opened at the source, and that no copy of it is wanted.
void tell_miss(const char* path, unsigned long bytes);

}  // namespace freshet::tier::reader
