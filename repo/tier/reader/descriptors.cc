// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/reader/descriptors.h"

#include <errno.h>
#include <string.h>

#include "repo/tier/reader/paths.h"

namespace freshet::tier::reader {
namespace {

constexpr int kRemembered = 1024;

/// Odd while it is written.
struct Entry {
  unsigned version;
  std::uint64_t inode;
  std::uint64_t device;
  struct timespec changed;
  struct stat source;
  unsigned counter;   ///< The process that counted its open as a hit; 0: none.
  std::uint32_t nth;  ///< Of the file's opens.
};
Entry g_entries[kRemembered];

/// Files on which this process took locks. One more than there is room for means: all files.
constexpr std::uint32_t kLockedMax = 64;
struct Locked {
  std::uint64_t device;
  std::uint64_t inode;  ///< Written last; no file has the inode 0.
};
Locked g_locked[kLockedMax];
std::uint32_t g_locked_count;

bool may_be_copy(const tier::Board& board, const struct stat& seen) {
  if (seen.st_mode != (S_IFREG | tier::kCopyMode) || seen.st_uid != call(SYS_geteuid)) return false;
  const std::uint64_t device = device_of(seen.st_dev);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    if (tier::load(board.tiers[i].device) == device) return true;
  }
  return false;
}

bool is_entry_of(const Entry& entry, const struct stat& copy) {
  return entry.inode == copy.st_ino && entry.device == copy.st_dev && entry.changed.tv_sec == copy.st_ctim.tv_sec &&
         entry.changed.tv_nsec == copy.st_ctim.tv_nsec;
}

/// Whether this process counted the open of `fd`, which the kernel describes as `copy`, as a hit. Says so once.
bool take_hit(int fd, const struct stat& copy, std::uint32_t& nth) {
  if (fd < 0 || fd >= kRemembered) return false;
  Entry& entry = g_entries[fd];
  unsigned process = static_cast<unsigned>(call(SYS_getpid));
  if (tier::load(entry.counter) != process || !is_entry_of(entry, copy)) return false;
  nth = entry.nth;
  return __atomic_compare_exchange_n(&entry.counter, &process, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

bool recall(int fd, const struct stat& copy, struct stat& source) {
  if (fd < 0 || fd >= kRemembered) return false;
  Entry& entry = g_entries[fd];
  const unsigned before = __atomic_load_n(&entry.version, __ATOMIC_ACQUIRE);
  if (before == 0 || (before & 1) != 0) return false;
  const bool same = is_entry_of(entry, copy);
  const struct stat known = entry.source;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (!same || __atomic_load_n(&entry.version, __ATOMIC_RELAXED) != before) return false;
  source = known;
  return true;
}

/// Reads the identity out of the path of what may be a copy. `path` is overwritten.
bool identity_of(const tier::Board& board, int fd, PathRoom& path, tier::Identity& identity) {
  const unsigned long bytes = path_of_descriptor(fd, path);
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

/// What getxattr put into the room; nullptr when that is no note. `got` is the call's result.
const NoteWithPath* note_in(PathRoom& room, long got) {
  static_assert(sizeof(NoteWithPath) <= sizeof(PathRoom));
  auto* const found = reinterpret_cast<NoteWithPath*>(&room);
  if (got < static_cast<long>(sizeof found->note) || found->note.magic != tier::kNoteMagic) return nullptr;
  room[got] = '\0';
  return found;
}

/// The note of the open file; nullptr when it has none.
const NoteWithPath* read_note(int fd, PathRoom& room) {
  return note_in(room,
                 call(SYS_fgetxattr, fd, address(tier::kNoteAttribute), address(&room), sizeof(NoteWithPath) - 1));
}

void describe_by(const tier::CopyNote& note, struct stat& seen) {
  seen.st_mode = note.mode;
  seen.st_uid = note.owner;
  seen.st_gid = note.group;
  seen.st_nlink = note.links;
  seen.st_blocks = static_cast<long>(note.blocks);
}

}  // namespace

void describe(const tier::Board& board, const tier::Identity& identity, struct stat& seen) {
  seen.st_dev = number_of(tier::load(board.sources[identity.source].device));
  seen.st_ino = identity.inode;
  seen.st_size = static_cast<long>(identity.size);
  seen.st_mtim = {.tv_sec = identity.mtime, .tv_nsec = identity.mtime_ns};
  seen.st_ctim = {.tv_sec = identity.ctime, .tv_nsec = identity.ctime_ns};
}

PathMark mark_of(const char* path, unsigned long bytes) {
  std::uint64_t hash = bytes;
  for (unsigned long i = 0; i < bytes; ++i) hash = tier::mixed(hash ^ static_cast<unsigned char>(path[i]));
  return {.bytes = bytes, .hash = hash};
}

bool describe_by_note(int fd, const PathMark& path, PathRoom& room, struct stat& seen) {
  static_assert(sizeof(NoteWithPath) <= sizeof(PathRoom));
  const long got = call(SYS_fgetxattr, fd, address(tier::kNoteAttribute), address(room), sizeof(NoteWithPath) - 1);
  tier::CopyNote note;
  if (got != static_cast<long>(sizeof note + path.bytes)) return false;
  ::memcpy(&note, room, sizeof note);
  const PathMark noted = mark_of(room + sizeof note, path.bytes);
  if (note.magic != tier::kNoteMagic || noted.hash != path.hash) return false;
  describe_by(note, seen);
  return true;
}

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
  tier::store(entry.counter, 0U);
  __atomic_store_n(&entry.version, version + 2, __ATOMIC_RELEASE);
}

void note_hit(int fd, std::uint32_t nth) {
  if (fd < 0 || fd >= kRemembered) return;
  g_entries[fd].nth = nth;
  tier::store(g_entries[fd].counter, static_cast<unsigned>(call(SYS_getpid)));
}

bool show_source(const tier::Board& board, int fd, struct stat& seen) {
  if (!may_be_copy(board, seen)) return false;
  struct stat source;
  if (recall(fd, seen, source)) {
    seen = source;
    return true;
  }
  const LentRoom room;
  tier::Identity identity;
  if (!room || !identity_of(board, fd, *room, identity)) return false;
  describe(board, identity, seen);
  if (const NoteWithPath* const note = read_note(fd, *room)) describe_by(note->note, seen);
  return true;
}

namespace {

constexpr int kCompareFiles = 0;  // KCMP_FILE
constexpr int kSharersMax = 64;

bool is_same_open_file(long process, int fd, int other) {
  return call(SYS_kcmp, process, call(SYS_getpid), kCompareFiles, fd, other) == 0;
}

/// The other numbers of this process that are duplicates of `fd`, which the kernel describes as `copy`.
int find_duplicates(int fd, const struct stat& copy, int (&found)[kSharersMax]) {
  int count = 0;
  for (int i = 0; i < kRemembered && count < kSharersMax; ++i) {
    struct stat seen {};
    if (i != fd && sys_fstat(i, seen) == 0 && seen.st_ino == copy.st_ino && seen.st_dev == copy.st_dev &&
        is_same_open_file(call(SYS_getpid), fd, i)) {
      found[count++] = i;
    }
  }
  return count;
}

/// Whether that open file is what the identity is of, whatever was written to it since.
bool is_file_of(const tier::Board& board, const tier::Identity& identity, const struct stat& file) {
  return file.st_ino == identity.inode && device_of(file.st_dev) == tier::load(board.sources[identity.source].device);
}

}  // namespace

int hand_back(tier::Board& board, int fd, bool locks_open_file) {
  struct stat seen;
  tier::Identity identity;
  if (sys_fstat(fd, seen) != 0 || !may_be_copy(board, seen)) return 0;
  const LentRoom room;
  if (!room) return -ENOMEM;
  if (!identity_of(board, fd, *room, identity)) return 0;
  // The parent cannot be made to have another open file, and would believe that it has the lock.
  if (locks_open_file && is_same_open_file(call(SYS_getppid), fd, fd)) return -ENOLCK;
  const NoteWithPath* const note = read_note(fd, *room);
  if (note == nullptr || note->path[0] != '/') return -ESTALE;
  const long flags = call(SYS_fcntl, fd, F_GETFL);
  const int source = sys_openat(
      AT_FDCWD, note->path, (flags > 0 ? static_cast<int>(flags) & O_NONBLOCK : 0) | O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (source < 0) return source;
  struct stat now;
  int result = -ESTALE;
  if (sys_fstat(source, now) == 0 && is_file_of(board, identity, now) &&
      static_cast<std::uint64_t>(now.st_size) == identity.size && now.st_ctim.tv_sec == identity.ctime &&
      now.st_ctim.tv_nsec == identity.ctime_ns) {
    const long offset = call(SYS_lseek, fd, 0, 1);
    if (offset > 0) (void)call(SYS_lseek, source, offset, 0);
    int numbers[kSharersMax];
    const int duplicates = find_duplicates(fd, seen, numbers);
    std::uint32_t nth = 0;
    bool was_hit = false;
    for (int i = -1; i < duplicates; ++i) {
      const int number = i < 0 ? fd : numbers[i];
      was_hit = take_hit(number, seen, nth) || was_hit;
      const long close_on_exec = call(SYS_fcntl, number, F_GETFD);
      const int moved = sys_dup3(source, number, close_on_exec > 0 ? O_CLOEXEC : 0);
      if (i < 0) result = moved < 0 ? moved : 0;
    }
    if (was_hit && offset == 0) turn_into_miss(board, nth, identity.size);
  }
  // A lock of the process ends with the first descriptor of its file that is closed: this one then stays open.
  if (sys_fstat(source, now) != 0 || !has_process_lock(now.st_dev, now.st_ino)) (void)sys_close(source);
  return result;
}

bool has_duplicate(int fd, const struct stat& file) {
  int numbers[kSharersMax];
  return find_duplicates(fd, file, numbers) > 0;
}

void note_process_lock(const tier::Board& board, int fd) {
  struct stat file;
  if (sys_fstat(fd, file) != 0 || tier::source_on(board, device_of(file.st_dev)) == tier::kSourcesMax) return;
  // A file with one name that is outside the sources is no source's.
  const LentRoom path;
  const unsigned long bytes = file.st_nlink > 1 || !path ? 0 : path_of_descriptor(fd, *path);
  if (bytes != 0 && !tier::is_below_source(board, *path, bytes)) return;
  if (has_process_lock(file.st_dev, file.st_ino)) return;
  const std::uint32_t place = __atomic_fetch_add(&g_locked_count, 1, __ATOMIC_RELAXED);
  if (place >= kLockedMax) return tier::store(g_locked_count, kLockedMax + 1);
  tier::store(g_locked[place].device, std::uint64_t{file.st_dev});
  __atomic_store_n(&g_locked[place].inode, std::uint64_t{file.st_ino}, __ATOMIC_RELEASE);
}

bool has_process_lock(std::uint64_t device, std::uint64_t inode) {
  const std::uint32_t count = tier::load(g_locked_count);
  if (count > kLockedMax) return true;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (__atomic_load_n(&g_locked[i].inode, __ATOMIC_ACQUIRE) == inode && tier::load(g_locked[i].device) == device)
      return true;
  }
  return false;
}

namespace {

/// The source's file that the note of the copy `probe` names, opened as a path alone; or -errno.
int open_noted(const tier::Board& board, int probe, const tier::Identity& identity, PathRoom& room) {
  char link[kLinkBytes];
  put_descriptor_link(link, probe);
  const NoteWithPath* const note = note_in(
      room, call(SYS_getxattr, address(link), address(tier::kNoteAttribute), address(&room), sizeof(NoteWithPath) - 1));
  if (note == nullptr) return -ESTALE;
  const int source = sys_openat(AT_FDCWD, note->path, O_PATH | O_CLOEXEC);
  struct stat seen;
  if (source < 0 || (sys_fstat(source, seen) == 0 && is_file_of(board, identity, seen))) return source;
  (void)sys_close(source);
  return -ESTALE;
}

}  // namespace

int source_behind(const tier::Board& board, int folder, const char* path) {
  const int probe = sys_openat(folder, path, O_PATH | O_CLOEXEC);
  if (probe < 0) return kNoCopy;
  struct stat seen;
  tier::Identity identity;
  int result = kNoCopy;
  if (sys_fstat(probe, seen) == 0 && may_be_copy(board, seen)) {
    const LentRoom room;
    if (!room) {
      result = -ENOMEM;
    } else if (identity_of(board, probe, *room, identity)) {
      result = open_noted(board, probe, identity, *room);
    }
  }
  (void)sys_close(probe);
  return result;
}

}  // namespace freshet::tier::reader
