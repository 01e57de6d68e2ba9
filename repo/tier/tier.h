// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tiering: copies of a source's files on faster disks of the node, for programs that know nothing of it.
///
/// `config.h`: reads the config. `copy_name.h`: makes a copy's name from its file. `tier_folder.h`: makes a copy in
/// steps, so that nobody reads a half copy. `keeper.h`: copies files. `keeper_door.h`: takes requests to the keeper.
/// `board.h`: what keeper, command line and readers share. `served_paths.h`: where a C++ program reads a file.
/// `order.h`: how a program tells what it will open. `FORMAT.md` has the names and the steps. The reader, which decides
/// inside a program at each open, is `bindings/posix/`.

#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper.h"
#include "repo/tier/keeper_door.h"
#include "repo/tier/order.h"
#include "repo/tier/served_paths.h"
#include "repo/tier/tier_folder.h"
