// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/reader/paths.h"

#include <errno.h>
#include <sys/mman.h>

#include "repo/tier/reader/kernel.h"

namespace freshet::tier::reader {
namespace {

constexpr unsigned long kPageBytes = 4096;

// More rooms than threads that open at once, mostly. A room is never given back in three cases: another thread forks
// while it is lent (in the child), a signal handler leaves the open by longjmp(), or a child of vfork() is killed
// during an open. If no room is free, the kernel gives pages.
constexpr unsigned kRooms = 32;
struct alignas(64) Room {
  PathRoom text;
};
Room g_rooms[kRooms];
bool g_lent[kRooms];

/// Puts the next component of `path` at `end`; its length, 0 when there is none. False when it can be no part of the
/// result.
bool put_component(const char*& path, char* out, unsigned long& end, Dots dots) {
  unsigned long bytes = 0;
  for (; *path != '\0' && *path != '/';) {
    if (end + bytes + 2 >= tier::kPathRoom) return false;
    out[end + 1 + bytes++] = *path++;
  }
  if (bytes == 0 || (bytes == 1 && out[end + 1] == '.')) return *path != '\0';
  if (bytes == 2 && out[end + 1] == '.' && out[end + 2] == '.') {
    while (end > 0 && out[--end] != '/') {
    }
    return dots == Dots::nothing && *path != '\0';
  }
  out[end] = '/';
  end += 1 + bytes;
  return true;
}

}  // namespace

LentRoom::LentRoom() {
  for (unsigned i = 0; i < kRooms; ++i) {
    if (!__atomic_load_n(&g_lent[i], __ATOMIC_RELAXED) && !__atomic_test_and_set(&g_lent[i], __ATOMIC_ACQUIRE)) {
      room_ = &g_rooms[i].text;
      return;
    }
  }
  const long place = call(SYS_mmap, 0, sizeof(PathRoom), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  room_ = place < 0 && place > -4096 ? nullptr : reinterpret_cast<PathRoom*>(place);
}

LentRoom::~LentRoom() {
  if (const auto* const room = reinterpret_cast<Room*>(room_); room >= g_rooms && room < g_rooms + kRooms) {
    __atomic_clear(&g_lent[room - g_rooms], __ATOMIC_RELEASE);
  } else if (room_ != nullptr) {
    (void)call(SYS_munmap, address(room_), sizeof(PathRoom));
  }
}

bool is_readable(const char* at) { return call(SYS_rt_sigprocmask, -1, address(at) & ~7L, 0, 8) != -EFAULT; }

unsigned long length_of(const char* path) {
  for (unsigned long bytes = 0; bytes < tier::kPathRoom; ++bytes) {
    const char* const at = path + bytes;
    if ((bytes == 0 || reinterpret_cast<unsigned long>(at) % kPageBytes == 0) && !is_readable(at)) return 0;
    if (*at == '\0') return bytes;
  }
  return 0;
}

void put_descriptor_link(char (&link)[kLinkBytes], int fd) {
  char* at = link;
  for (const char* text = "/proc/self/fd/"; *text != '\0';) *at++ = *text++;
  char digits[12];
  int count = 0;
  do digits[count++] = static_cast<char>('0' + fd % 10);
  while ((fd /= 10) != 0);
  while (count > 0) *at++ = digits[--count];
  *at = '\0';
}

unsigned long path_of_descriptor(int fd, PathRoom& path) {
  char link[kLinkBytes];
  put_descriptor_link(link, fd);
  const long got = call(SYS_readlinkat, AT_FDCWD, address(link), address(path), tier::kPathRoom - 1);
  if (got <= 0 || got >= static_cast<long>(tier::kPathRoom) - 1) return 0;
  path[got] = '\0';
  return static_cast<unsigned long>(got);
}

unsigned long absolute_path(int folder, const char* path, PathRoom& out, Dots dots) {
  if (length_of(path) == 0) return 0;
  unsigned long end = 0;
  if (*path != '/') {
    if (folder == AT_FDCWD) {
      const long got = call(SYS_getcwd, address(out), tier::kPathRoom);
      if (got <= 1 || out[0] != '/') return 0;
      end = static_cast<unsigned long>(got) - 1;
    } else {
      end = folder < 0 ? 0 : path_of_descriptor(folder, out);
      if (end == 0 || out[0] != '/') return 0;
    }
    if (end == 1) end = 0;
  }
  for (;;) {
    if (!put_component(path, out, end, dots)) return 0;
    if (*path == '\0') break;
    ++path;
  }
  out[end] = '\0';
  return end;
}

}  // namespace freshet::tier::reader
