// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Files that a program keeps open. A descriptor of the source moves to its finished copy inside the program's own
/// pread(), when nobody can tell: the copy has the same bytes and gets the same offset. A duplicate, or a child that
/// shares the open file, would see another offset from then on. So only a descriptor moves that was never duplicated,
/// in a process without children, by the process that opened it; and, since another thread may be about to read() at
/// the old offset, only in a process with one thread.
///
/// Any thread, signal handlers too.

#include "repo/tier/board.h"

namespace freshet::tier::reader {

/// `fd` was just opened at the source, and is served to the program: it may move later.
void keep_track(int fd, const tier::Identity& identity);

/// `fd` gets duplicates, locks, or another meaning: it stays where it is.
void lose_track(int fd);

/// The program reads `fd` at an offset of its own. Moves it when its copy is finished.
void move_if_finished(int fd);

}  // namespace freshet::tier::reader
