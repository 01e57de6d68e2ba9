// SPDX-License-Identifier: Apache-2.0
#include "bindings/posix/descriptors.h"

#include <errno.h>
#include <string.h>

namespace freshet::reader {
namespace {

constexpr int kRemembered = 1024;

/// Odd while it is written.
struct Entry {
  unsigned version;
  std::uint64_t inode;
  std::uint64_t device;
  struct timespec changed;
  struct stat source;
};
Entry g_entries[kRemembered];

bool may_be_copy(const tier::Board& board, const struct stat& seen) {
  if ((seen.st_mode & ~std::uint32_t{0}) != (S_IFREG | tier::kCopyMode)) return false;
  const std::uint64_t device = device_of(seen.st_dev);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    if (tier::load(board.tiers[i].device) == device) return true;
  }
  return false;
}

bool recall(int fd, const struct stat& copy, struct stat& source) {
  if (fd < 0 || fd >= kRemembered) return false;
  Entry& entry = g_entries[fd];
  const unsigned before = __atomic_load_n(&entry.version, __ATOMIC_ACQUIRE);
  if (before == 0 || (before & 1) != 0) return false;
  const bool same = entry.inode == copy.st_ino && entry.device == copy.st_dev &&
                    entry.changed.tv_sec == copy.st_ctim.tv_sec && entry.changed.tv_nsec == copy.st_ctim.tv_nsec;
  const struct stat known = entry.source;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (!same || __atomic_load_n(&entry.version, __ATOMIC_RELAXED) != before) return false;
  source = known;
  return true;
}

/// The path of a descriptor, ended by zero; its length, 0 when it is not known. A removed file's loses " (deleted)".
unsigned long path_of(int fd, char (&path)[tier::kPathRoom]) {
  char link[32];
  char* at = link;
  for (const char* text = "/proc/self/fd/"; *text != '\0';) *at++ = *text++;
  char digits[12];
  int count = 0;
  do digits[count++] = static_cast<char>('0' + fd % 10);
  while ((fd /= 10) != 0);
  while (count > 0) *at++ = digits[--count];
  *at = '\0';
  const long got = call(SYS_readlinkat, AT_FDCWD, address(link), address(path), sizeof path - 1);
  if (got <= 0) return 0;
  path[got] = '\0';
  return static_cast<unsigned long>(got);
}

/// Reads the identity out of the path of what may be a copy.
bool identity_of(const tier::Board& board, int fd, tier::Identity& identity) {
  char path[tier::kPathRoom];
  const unsigned long bytes = path_of(fd, path);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    const unsigned long folder = ::strlen(board.tiers[i].path);
    if (bytes < folder + 1 + tier::kCopyPathBytes || ::memcmp(path, board.tiers[i].path, folder) != 0) continue;
    if (path[folder] != '/' || path[folder + 3] != '/') continue;
    const char* rest = path + folder + 1 + tier::kCopyPathBytes;
    if (*rest != '\0' && ::strcmp(rest, " (deleted)") != 0) continue;
    if (tier::take_name(path + folder + 4, identity) && identity.source < board.source_count) return true;
  }
  return false;
}

struct NoteWithPath {
  tier::CopyNote note;
  char path[tier::kPathRoom];
};

bool read_note(int fd, NoteWithPath& out) {
  const long got = call(SYS_fgetxattr, fd, address(tier::kNoteAttribute), address(&out), sizeof out - 1);
  if (got < static_cast<long>(sizeof out.note) || out.note.magic != tier::kNoteMagic) return false;
  reinterpret_cast<char*>(&out)[got] = '\0';
  return true;
}

/// Changes what is the copy's own in `seen` into the source's.
void describe(const tier::Board& board, int fd, const tier::Identity& identity, struct stat& seen) {
  seen.st_dev = number_of(tier::load(board.sources[identity.source].device));
  seen.st_ino = identity.inode;
  seen.st_size = static_cast<long>(identity.size);
  seen.st_mtim = {.tv_sec = identity.mtime, .tv_nsec = identity.mtime_ns};
  seen.st_ctim = {.tv_sec = identity.ctime, .tv_nsec = identity.ctime_ns};
  NoteWithPath note;
  if (!read_note(fd, note)) return;
  seen.st_mode = note.note.mode;
  seen.st_uid = note.note.owner;
  seen.st_gid = note.note.group;
  seen.st_nlink = note.note.links;
  seen.st_blocks = static_cast<long>(note.note.blocks);
}

}  // namespace

void remember(int fd, const struct stat& copy, const struct stat& source) {
  if (fd < 0 || fd >= kRemembered) return;
  Entry& entry = g_entries[fd];
  unsigned version = __atomic_load_n(&entry.version, __ATOMIC_RELAXED);
  // Whoever finds it being written (a handler of a signal, a fork in between) leaves it: the copy's name says the same.
  if ((version & 1) != 0 ||
      !__atomic_compare_exchange_n(&entry.version, &version, version + 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    return;
  }
  __atomic_thread_fence(__ATOMIC_RELEASE);
  entry.inode = copy.st_ino;
  entry.device = copy.st_dev;
  entry.changed = copy.st_ctim;
  entry.source = source;
  __atomic_store_n(&entry.version, version + 2, __ATOMIC_RELEASE);
}

bool show_source(const tier::Board& board, int fd, struct stat& seen) {
  if (!may_be_copy(board, seen)) return false;
  struct stat source;
  if (recall(fd, seen, source)) {
    seen = source;
    return true;
  }
  tier::Identity identity;
  if (!identity_of(board, fd, identity)) return false;
  describe(board, fd, identity, seen);
  return true;
}

int hand_back(const tier::Board& board, int fd) {
  struct stat seen;
  tier::Identity identity;
  if (sys_fstat(fd, seen) != 0 || !may_be_copy(board, seen) || !identity_of(board, fd, identity)) return 0;
  NoteWithPath note;
  if (!read_note(fd, note) || note.path[0] != '/') return -ESTALE;
  const long flags = call(SYS_fcntl, fd, F_GETFL);
  const long close_on_exec = call(SYS_fcntl, fd, F_GETFD);
  const int source = sys_openat(
      AT_FDCWD, note.path, (flags > 0 ? static_cast<int>(flags) & O_NONBLOCK : 0) | O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (source < 0) return source;
  struct stat now;
  int result = -ESTALE;
  if (sys_fstat(source, now) == 0 && now.st_ino == identity.inode &&
      static_cast<std::uint64_t>(now.st_size) == identity.size &&
      device_of(now.st_dev) == tier::load(board.sources[identity.source].device) &&
      now.st_ctim.tv_sec == identity.ctime && now.st_ctim.tv_nsec == identity.ctime_ns) {
    const long offset = call(SYS_lseek, fd, 0, 1);
    if (offset > 0) (void)call(SYS_lseek, source, offset, 0);
    result = sys_dup3(source, fd, close_on_exec > 0 ? O_CLOEXEC : 0);
    if (result > 0) result = 0;
  }
  (void)sys_close(source);
  return result;
}

}  // namespace freshet::reader
