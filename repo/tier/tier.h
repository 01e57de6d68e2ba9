// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tiering: copies of a source's files on faster disks of the node, for programs that know nothing of it.
///
/// `config.h`: what a person wrote. `copy_name.h`: a copy is named by what it copies. `tier_folder.h`: how a copy comes
/// to be, so that none is ever read by halves. `keeper.h`: who copies, and `keeper_door.h`: how it is asked. `board.h`:
/// what keeper, command line and readers share. `served_paths.h`: where a C++ program reads a file. `order.h`: how a
/// program tells what it will open. `FORMAT.md` has the names and the steps. The reader, which decides inside a program
/// at each open, is `bindings/posix/`.

#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper.h"
#include "repo/tier/keeper_door.h"
#include "repo/tier/order.h"
#include "repo/tier/served_paths.h"
#include "repo/tier/tier_folder.h"
