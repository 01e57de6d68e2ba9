// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Tells which descriptors are copies, and how their sources look. The reader remembers what it opened, and asks the
/// kernel before it believes its memory. A descriptor that it did not open itself (one from before exec, a duplicate,
/// one that came over a socket) is recognised by the copy's own name and note.
///
/// Any thread, signal handlers too.

#include <sys/stat.h>

#include "repo/tier/board.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/paths.h"

namespace freshet::tier::reader {

/// `fd` is a copy, which the kernel describes as `copy`; the source is as `source`.
void remember(int fd, const struct stat& copy, const struct stat& source);

/// That open of `fd`, a copy that is remembered, was counted as a hit: the `nth` of its file.
void note_hit(int fd, std::uint32_t nth);

/// Makes device, inode, size and times of `seen` those of the identity.
void describe(const tier::Board& board, const tier::Identity& identity, struct stat& seen);
/// What tells a path from others, whatever their hash on disk is.
struct PathMark {
  std::uint64_t bytes;
  std::uint64_t hash;
};
PathMark mark_of(const char* path, unsigned long bytes);
/// Makes the rest what the note of the copy `fd` says. False when the note names another path than this one. `room` is
/// overwritten.
bool describe_by_note(int fd, const PathMark& path, PathRoom& room, struct stat& seen);

/// When `fd`, which the kernel describes as `seen`, is a copy: makes `seen` the source's. True when it was one.
bool show_source(const tier::Board& board, int fd, struct stat& seen);

/// Puts the source in the place of a copy, at the same offset, for what only the source can do. 0, also when `fd` is no
/// copy; else -errno, and the descriptor is as it was: the source changed or went away. Duplicates within this process
/// go along, where the kernel tells them (kcmp). A lock that belongs to the open file, not to the process, is refused
/// (ENOLCK) for one that the parent shares. An open of this process that was a hit, and from which nothing was read by
/// then (as far as its offset tells), is a miss from then on.
int hand_back(tier::Board& board, int fd, bool locks_open_file = false);

/// Whether another number of this process is a duplicate of `fd`, which the kernel describes as `file`, made where the
/// reader did not see it. False also where the kernel does not tell (kcmp).
bool has_duplicate(int fd, const struct stat& file);

/// This process is about to take a lock of its own on the file `fd` (fcntl, lockf). The kernel ends such a lock when
/// any descriptor of that file is closed. So from then on no descriptor of that file is closed behind the program's
/// back: its opens get the source. A file that is no source's is not noted.
void note_process_lock(const tier::Board& board, int fd);
/// Whether the file with that device, as `struct stat` has it, and that inode was noted.
bool has_process_lock(std::uint64_t device, std::uint64_t inode);

/// For a name that leads to a copy, as /proc/self/fd/N does: the source, as a descriptor that only names it (O_PATH);
/// -errno when it is not the same file any more; kNoCopy for every other name.
inline constexpr int kNoCopy = -4096;
int source_behind(const tier::Board& board, int folder, const char* path);

}  // namespace freshet::tier::reader
