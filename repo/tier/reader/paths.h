// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Paths without the C library. Any thread, signal handlers too.

#include "repo/tier/board.h"

namespace freshet::tier::reader {

/// Room for a tier's path and a copy's name below it.
using PathRoom = char[tier::kPathRoom + tier::kCopyPathBytes + 2];

/// A room that its owner has until the end of its scope. It is never on the stack: a signal's handler may have one of
/// 8 KiB, most of which the kernel and the dynamic linker take. False: there is no memory.
class LentRoom {
 public:
  LentRoom();
  ~LentRoom();
  LentRoom(const LentRoom&) = delete;
  LentRoom& operator=(const LentRoom&) = delete;

  explicit operator bool() const { return room_ != nullptr; }
  PathRoom& operator*() const { return *room_; }

 private:
  PathRoom* room_;
};

/// "/proc/self/fd/N", ended by zero.
inline constexpr int kLinkBytes = 32;
void put_descriptor_link(char (&link)[kLinkBytes], int fd);

/// The absolute path of an open file without links, as the kernel tells it, ended by zero; its length, 0 when it is not
/// known.
unsigned long path_of_descriptor(int fd, PathRoom& path);

/// Whether the kernel could read at that address.
bool is_readable(const char* address);

/// The length of a path that a program gave, which may be any address: 0 for one that no memory has, also before the
/// path ends, and for what is too long. The kernel is to refuse those.
unsigned long length_of(const char* path);

/// What "a/.." is, where a link may stand at "a".
enum class Dots { unknown, nothing };
/// The absolute path that a program means, from its spelling alone: no link is followed, nothing is looked at. 0 for
/// what a spelling cannot tell ("..", unless it is said what that is, and a slash at the end), what is too long, and
/// addresses that no memory has.
unsigned long absolute_path(int folder, const char* path, PathRoom& out, Dots dots = Dots::unknown);

}  // namespace freshet::tier::reader
