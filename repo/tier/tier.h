// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tiering: copies of a source's files on faster disks of the node, for programs that know nothing of it.
///
/// A C++ program can use three files without the reader:
///   1. config.h: reads the config.
///   2. served_paths.h: says where a file is to be read now.
///   3. order.h: tells the keeper which files the program opens next.
///
/// Behind them: copy_name.h names a copy by what it copies. tier_folder.h makes a copy, so that no reader sees half of
/// one. keeper.h makes the copies, and keeper_door.h takes the requests. board.h has what keeper, command line and
/// readers share. FORMAT.md has the names and the steps. The reader, which decides inside a program at each open, is
/// repo/tier/reader/.

#include "repo/tier/config.h"
#include "repo/tier/order.h"
#include "repo/tier/served_paths.h"
