// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells which descriptors are copies, and how their sources look. The reader remembers what it opened, and asks the kernel
/// before it believes its memory. A descriptor that it did not open itself (one from before exec, a duplicate, one that
/// came over a socket) is recognised by the copy's own name and note.
///
/// Any thread, signal handlers too.

#include <sys/stat.h>

#include "bindings/posix/kernel.h"
#include "repo/tier/board.h"

namespace freshet::reader {

/// `fd` is a copy, which the kernel describes as `copy`; the source is as `source`.
void remember(int fd, const struct stat& copy, const struct stat& source);

/// Makes device, inode, size and times of `seen` those of the identity.
void describe(const tier::Board& board, const tier::Identity& identity, struct stat& seen);
/// Makes the rest what the note of the copy `fd` says. False when the note names another path than this one.
bool describe_by_note(int fd, const char* path, unsigned long bytes, struct stat& seen);

/// When `fd`, which the kernel describes as `seen`, is a copy: makes `seen` the source's. True when it was one.
bool show_source(const tier::Board& board, int fd, struct stat& seen);

/// Puts the source in the place of a copy, at the same offset, for what only the source can do. 0, also when `fd` is no
/// copy; else -errno, and the descriptor is as it was: the source changed or went away. Duplicates within this process
/// go along, where the kernel tells them (kcmp). A lock that belongs to the open file, not to the process, is refused
/// (ENOLCK) for one that the parent shares.
int hand_back(const tier::Board& board, int fd, bool locks_open_file = false);

/// This process took a lock of its own on some file (fcntl, lockf). The kernel ends those when any descriptor of that
/// file is closed, so from then on no descriptor of a source is closed behind the program's back: opens get the source.
void note_process_lock();
bool has_process_lock();

/// For a name that leads to a copy, as /proc/self/fd/N does: the source, as a descriptor that only names it (O_PATH);
/// -errno when it is not the same file any more; kNoCopy for every other name.
inline constexpr int kNoCopy = -4096;
int source_behind(const tier::Board& board, int folder, const char* path);

}  // namespace freshet::reader
