// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/reader/decide.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <time.h>

#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/kept.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/paths.h"
#include "repo/tier/reader/session.h"

namespace freshet::tier::reader {
namespace {

using tier::Board;
using tier::Identity;
using tier::identity_of;

constexpr long kMayRead = 4;  // R_OK
// What the kernel calls O_LARGEFILE where the C library says 0.
constexpr int kLargeFile = 0100000;
// An open with any other flag is the source's.
constexpr int kServedFlags =
    O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW | O_NOATIME | O_DIRECT | O_LARGEFILE | kLargeFile;

bool may_be_served(int flags) { return (flags & O_ACCMODE) == O_RDONLY && (flags & ~(O_ACCMODE | kServedFlags)) == 0; }

/// A path as a program spells it, from the root on. Links are not seen, so this is a hint alone: it spares the source
/// an open.
struct Spelling {
  std::uint64_t hash = 0;  ///< 0: nothing is known.
  bool is_below = false;   ///< As a source's.
};

[[gnu::noinline]] Spelling spelling_of(const Board& board, int folder, const char* path) {
  const LentRoom room;
  const unsigned long bytes = room ? absolute_path(folder, path, *room, Dots::nothing) : 0;
  if (bytes == 0) return {};
  return {.hash = tier::hashed(tier::kHashSeed, *room, bytes), .is_below = is_below_source(board, *room, bytes)};
}

bool look_at(int folder, const char* path, int flags, int sync, struct stat& out) {
  struct statx seen;
  const int how = ((flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0) | sync;
  if (call(SYS_statx, folder, address(path), how, STATX_BASIC_STATS, address(&seen)) != 0) return false;
  ::memset(&out, 0, sizeof out);
  out.st_dev = number_of(std::uint64_t{seen.stx_dev_major} << 32 | seen.stx_dev_minor);
  out.st_ino = seen.stx_ino;
  out.st_mode = seen.stx_mode;
  out.st_nlink = seen.stx_nlink;
  out.st_uid = seen.stx_uid;
  out.st_gid = seen.stx_gid;
  out.st_size = static_cast<long>(seen.stx_size);
  out.st_blksize = static_cast<int>(seen.stx_blksize);
  out.st_blocks = static_cast<long>(seen.stx_blocks);
  out.st_atim = {.tv_sec = seen.stx_atime.tv_sec, .tv_nsec = seen.stx_atime.tv_nsec};
  out.st_mtim = {.tv_sec = seen.stx_mtime.tv_sec, .tv_nsec = seen.stx_mtime.tv_nsec};
  out.st_ctim = {.tv_sec = seen.stx_ctime.tv_sec, .tv_nsec = seen.stx_ctime.tv_nsec};
  return true;
}

/// Asks the server, not a cache of the mount: who changed a file elsewhere is to be seen.
bool look_at_server(int folder, const char* path, int flags, struct stat& out) {
  return look_at(folder, path, flags, AT_STATX_FORCE_SYNC, out);
}

/// A descriptor of the finished copy, with its source remembered; or -1.
int open_copy(Board& board, const Identity& identity, const struct stat& source, int flags, PathRoom& room,
              bool counts = false) {
  struct stat copy;
  const int fd = open_finished(board, identity, flags, copy, room, counts);
  if (fd >= 0) remember(fd, copy, source);
  return fd;
}

/// Counts an open, and wakes a keeper that waits for one. Returns the how-manieth open of the file it was.
std::uint32_t count(Board& board, const Identity& identity, bool hit) {
  std::uint32_t nth = 0;
  if (count_open(board, tier::file_key(identity.source, identity.inode), identity.size, hit, nth))
    (void)call(SYS_futex, address(&board.awaits_open), FUTEX_WAKE, 1);
  return nth;
}

/// Moves a copy to the number that the program was to get, in one step. The source's description is remembered there
/// too.
void take_number(int copy, int fd, int flags, const struct stat& source) {
  const int moved = sys_dup3(copy, fd, flags & O_CLOEXEC);
  (void)sys_close(copy);
  if (moved < 0) return;
  struct stat seen;
  if (sys_fstat(fd, seen) == 0) remember(fd, seen, source);
}

long nanoseconds_now() {
  struct timespec now;
  (void)call(SYS_clock_gettime, CLOCK_MONOTONIC, address(&now));
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

/// Asks for a copy of the open file `fd`; where there is no room for one, the keeper may want to know all the same.
/// The path is asked for again: the room had another one meanwhile.
void ask_for(Board& board, int fd, PathRoom& room, bool wants_copy = true) {
  const unsigned long bytes = path_of_descriptor(fd, room);
  if (bytes == 0 || !is_below_source(board, room, bytes)) return;
  if (wants_copy) {
    ask_for_copy(room, bytes);
  } else {
    tell_miss(room, bytes);
  }
}

/// first_open = "wait": the copy, once it is made; -1 when it is not to be had, or not soon enough.
int wait_for_copy(Board& board, int fd, const Identity& identity, const struct stat& source, int flags,
                  PathRoom& room) {
  const std::uint64_t key = identity_key(identity);
  constexpr long kLookEachNs = 200'000'000;
  const long begin = nanoseconds_now();
  const long deadline = begin + static_cast<long>(tier::load(board.wait_ns));
  long next_look = begin + kLookEachNs;
  ask_for(board, fd, room);
  while (has_keeper() && !tier::is_refused(board, key)) {
    const std::uint32_t seen = tier::load(board.changes);
    const int copy = open_copy(board, identity, source, flags, room);
    if (copy >= 0) return copy;
    if (copy == -EMFILE || copy == -ENFILE) return -1;  // Nor is one free to ask the keeper.
    const struct timespec at_most = {.tv_sec = 0, .tv_nsec = kLookEachNs};
    (void)call(SYS_futex, address(&board.changes), FUTEX_WAIT, seen, address(&at_most));
    const long time = nanoseconds_now();
    if (time >= deadline) return -1;
    // Every copy that anybody makes wakes; the source and the keeper are asked now and then.
    if (time < next_look) continue;
    next_look = time + kLookEachNs;
    // The keeper copies what stands there now: what was opened gets no copy any more.
    struct stat now;
    if (sys_fstat(fd, now) != 0 || !(identity_of(identity.source, now) == identity)) return -1;
    // A request may have been lost, and a keeper may die: each is looked for again.
    ask_for(board, fd, room);
    // The room has the path now. The keeper finds nothing there if the file was deleted, or its folder closed.
    if (!look_at_server(AT_FDCWD, room, 0, now) || !(identity_of(identity.source, now) == identity)) return -1;
  }
  return open_copy(board, identity, source, flags, room);
}

// Files of a source's file system that were found to be no source's, by their identity: to ask for a path costs more
// than an open. A file that came below a source by the move of a folder is tiered from the next process on.
constexpr std::uint64_t kOutsiders = 1024;
std::uint64_t g_outsiders[kOutsiders];

bool is_outsider(const Identity& identity) {
  const std::uint64_t key = identity_key(identity);
  return tier::load(g_outsiders[key % kOutsiders]) == key;
}

enum class Leads { nobody_knows, elsewhere, to_source };

/// Whether a path that is spelled as no source's leads into one, by a link. What this host's caches know of the file is
/// enough for that: whose it is does not change.
[[gnu::noinline]] Leads where_leads(const Board& board, int folder, const char* path, int flags) {
  struct stat file;
  if (!look_at(folder, path, flags, AT_STATX_DONT_SYNC, file)) return Leads::nobody_knows;
  const std::uint32_t source = source_on(board, device_of(file.st_dev));
  if (source == tier::kSourcesMax || !S_ISREG(file.st_mode)) return Leads::elsewhere;
  return is_outsider(identity_of(source, file)) ? Leads::elsewhere : Leads::to_source;
}

/// `fd` is the source's. Returns what the program gets.
[[gnu::noinline]] int serve_opened(Board& board, int fd, int flags, const Spelling& spelling) {
  struct stat file;
  if (sys_fstat(fd, file) != 0 || !S_ISREG(file.st_mode)) return fd;
  const std::uint32_t source = source_on(board, device_of(file.st_dev));
  if (source == tier::kSourcesMax || has_process_lock(file.st_dev, file.st_ino)) return fd;
  const Identity identity = identity_of(source, file);
  if (is_outsider(identity)) return fd;
  const LentRoom lent;
  if (!lent) return fd;
  PathRoom& path = *lent;
  const unsigned long bytes = path_of_descriptor(fd, path);
  if (bytes == 0) return fd;
  if (!is_below_source(board, path, bytes)) {
    tier::store(g_outsiders[identity_key(identity) % kOutsiders], identity_key(identity));
    return fd;
  }
  if (spelling.hash != 0) hint_at(board, spelling.hash);
  int copy = open_copy(board, identity, file, flags, path, /*counts=*/true);
  if (copy < 0 && tier::load(board.waits) != 0 && identity.size <= tier::load(board.room_bytes)) {
    copy = wait_for_copy(board, fd, identity, file, flags, path);
  }
  const std::uint32_t nth = count(board, identity, copy >= 0);
  if (copy >= 0) {
    take_number(copy, fd, flags, file);
    note_hit(fd, nth);
    return fd;
  }
  if (identity.size <= tier::load(board.room_bytes)) {
    ask_for(board, fd, path);
  } else {
    if (tier::load(board.wants_room) == 0) tier::store(board.wants_room, std::uint32_t{1});
    if (tier::load(board.follows) != 0) ask_for(board, fd, path, /*wants_copy=*/false);
  }
  keep_track(fd, identity);
  return fd;
}

/// Whether this process may do what the file's owner may, though it is not the owner. Who is shown as nobody may be
/// somebody whom this process has no rights over.
bool acts_as_owner(const struct stat& file) {
  constexpr unsigned kVersion = 0x20080522;
  constexpr unsigned kOwnersRights = 1U << 3;  // CAP_FOWNER
  constexpr unsigned kNobody = 65534;
  struct {
    unsigned version = kVersion;
    int process = 0;
  } header;
  struct {
    unsigned effective, permitted, inheritable;
  } sets[2];
  return file.st_uid != kNobody && file.st_gid != kNobody && call(SYS_capget, address(&header), address(&sets)) == 0 &&
         (sets[0].effective & kOwnersRights) != 0;
}

/// Whether this process may open the file, for certain. Capabilities and the rest are for the kernel to judge.
bool may_open(const struct stat& file, int flags) {
  const bool is_owner = call(SYS_geteuid) == file.st_uid;
  if ((flags & O_NOATIME) != 0 && !is_owner) return false;
  const unsigned reads = is_owner ? S_IRUSR : S_IRGRP | S_IROTH;
  return (file.st_mode & reads) == reads;
}

/// The kernel's judgement, without an open.
bool may_open_at(int folder, const char* path, int flags, const struct stat& file) {
  if (may_open(file, flags)) return true;
  const int how = AT_EACCESS | ((flags & O_NOFOLLOW) != 0 ? AT_SYMLINK_NOFOLLOW : 0);
  if (call(SYS_faccessat2, folder, address(path), kMayRead, how) != 0) return false;
  return (flags & O_NOATIME) == 0 || call(SYS_geteuid) == file.st_uid || acts_as_owner(file);
}

/// The copy of the file that a path leads to, without an open at the source; or -1.
[[gnu::noinline]] int serve_unopened(Board& board, int folder, const char* path, int flags) {
  struct stat file;
  if (!look_at_server(folder, path, flags, file) || !S_ISREG(file.st_mode)) return -1;
  const std::uint32_t source = source_on(board, device_of(file.st_dev));
  if (source == tier::kSourcesMax || has_process_lock(file.st_dev, file.st_ino)) return -1;
  if (!may_open_at(folder, path, flags, file)) return -1;
  const Identity identity = identity_of(source, file);
  const LentRoom room;
  if (!room) return -1;
  const int copy = open_copy(board, identity, file, flags, *room);
  if (copy >= 0) note_hit(copy, count(board, identity, true));
  return copy;
}

/// What the tier's link for the path says. `link` is room for its name.
bool take_link(const Board& board, std::uint32_t number, std::uint64_t hash, Identity& identity, PathRoom& link) {
  static_assert(tier::kPathLinkBytes <= tier::kCopyPathBytes);
  char text[tier::kPathTextBytes + 1];
  const unsigned long folder = ::strlen(board.tiers[number].path);
  ::memcpy(link, board.tiers[number].path, folder);
  link[folder] = '/';
  *tier::put_path_link(link + folder + 1, hash) = '\0';
  const long got = call(SYS_readlinkat, AT_FDCWD, address(link), address(text), sizeof text);
  return got > 0 && tier::take_path_text(text, text + got, identity) && identity.source < board.source_count;
}

/// validate = "never": the copy of the file that is spelled so, without a look at the source; or -1. The links are by
/// path, and a link may be of another path with the same hash: the copy's own note decides.
[[gnu::noinline]] int serve_unlooked(Board& board, int folder, const char* path, int flags) {
  const LentRoom lent;
  if (!lent) return -1;
  PathRoom& room = *lent;
  const unsigned long bytes = absolute_path(folder, path, room);
  if (bytes == 0 || !is_below_source(board, room, bytes)) return -1;
  const std::uint64_t hash = tier::hashed(tier::kHashSeed, room, bytes);
  const PathMark mark = mark_of(room, bytes);
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    Identity identity;
    if (!take_link(board, i, hash, identity, room)) continue;
    struct stat file;
    struct stat copy;
    ::memset(&file, 0, sizeof file);
    describe(board, identity, file);
    if (has_process_lock(file.st_dev, file.st_ino)) return -1;
    const int fd = open_finished(board, identity, flags, copy, room);
    if (fd < 0) continue;
    file.st_atim = copy.st_atim;
    file.st_blksize = copy.st_blksize;
    if (describe_by_note(fd, mark, room, file) && may_open(file, flags)) {
      remember(fd, copy, file);
      note_hit(fd, count(board, identity, true));
      return fd;
    }
    (void)sys_close(fd);
  }
  return -1;
}

}  // namespace

int open_finished(Board& board, const Identity& identity, int flags, struct stat& copy, PathRoom& path, bool counts) {
  const auto user = static_cast<std::uint32_t>(call(SYS_geteuid));
  for (std::uint32_t i = 0; i < board.tier_count; ++i) {
    int fd = static_cast<int>(call(kStatAt, AT_FDCWD, address(board.tiers[i].path), address(&copy), 0));
    if (fd == 0 && !tier::is_own_folder(copy, user)) fd = -EPERM;
    if (fd == 0) {
      const unsigned long folder = ::strlen(board.tiers[i].path);
      ::memcpy(path, board.tiers[i].path, folder);
      path[folder] = '/';
      *tier::put_copy_path(path + folder + 1, identity) = '\0';
      // A pipe in the place of a copy is not to be waited for.
      fd =
          sys_openat(AT_FDCWD, path, (flags & (O_CLOEXEC | O_NOFOLLOW | O_NOATIME)) | O_RDONLY | O_NONBLOCK | O_NOCTTY);
    }
    if (fd == -ENOENT) continue;
    if (fd >= 0 && sys_fstat(fd, copy) == 0 && tier::is_finished_copy(copy, identity, user)) {
      if ((flags & O_NONBLOCK) == 0) (void)call(SYS_fcntl, fd, F_SETFL, flags & O_NOATIME);
      return fd;
    }
    if (fd >= 0) (void)sys_close(fd);
    if (counts) tier::add(board.counters.fallbacks, 1);
    if (fd == -EMFILE || fd == -ENFILE) return fd;
  }
  return -1;
}

int source_of_written(const char* path, int folder) {
  if (length_of(path) == 0 || path[0] != '/') return kNoCopy;
  constexpr const char* kNames[] = {"/proc/", "/dev/"};
  for (const char* names : kNames) {
    unsigned long at = 0;
    while (names[at] != '\0' && names[at] == path[at]) ++at;
    if (names[at] != '\0') continue;
    const Board* const known = board();
    return known == nullptr ? kNoCopy : source_behind(*known, folder, path);
  }
  return kNoCopy;
}

int open_file(int folder, const char* path, int flags, unsigned mode) {
  if ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) {
    const int source = source_of_written(path, folder);
    if (source == kNoCopy) return sys_openat(folder, path, flags, mode);
    if (source < 0) return source;
    char link[kLinkBytes];
    put_descriptor_link(link, source);
    const int fd = (flags & O_NOFOLLOW) != 0 || (flags & O_EXCL) != 0 ? sys_openat(folder, path, flags, mode)
                                                                      : sys_openat(AT_FDCWD, link, flags, mode);
    (void)sys_close(source);
    return fd;
  }
  Board* const known = may_be_served(flags) ? board() : nullptr;
  if (known == nullptr) return sys_openat(folder, path, flags, mode);
  if (known->never_validates != 0) {
    const int copy = serve_unlooked(*known, folder, path, flags);
    if (copy >= 0) return copy;
  }
  const Spelling spelling = spelling_of(*known, folder, path);
  // Below a source a look before the open would cost as much as the open where there is no copy; elsewhere it is local.
  Leads leads = spelling.hash != 0 && is_hinted(*known, spelling.hash) ? Leads::to_source : Leads::nobody_knows;
  if (leads == Leads::nobody_knows && !spelling.is_below) leads = where_leads(*known, folder, path, flags);
  if (leads == Leads::to_source) {
    const int copy = serve_unopened(*known, folder, path, flags);
    if (copy >= 0 && spelling.hash != 0) hint_at(*known, spelling.hash);
    if (copy >= 0) return copy;
  }
  const int fd = sys_openat(folder, path, flags, mode);
  lose_track(fd);
  return fd < 0 || leads == Leads::elsewhere ? fd : serve_opened(*known, fd, flags, spelling);
}

int returned(long result) {
  if (result >= 0) return static_cast<int>(result);
  errno = static_cast<int>(-result);
  return -1;
}

}  // namespace freshet::tier::reader
