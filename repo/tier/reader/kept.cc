// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/reader/kept.h"

#include <errno.h>
#include <linux/wait.h>
#include <signal.h>
#include <string.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/session.h"

namespace freshet::tier::reader {
namespace {

constexpr int kKept = 1024;
constexpr int kAllProcesses = 0;  // P_ALL
/// A copy whose mark on the board was overwritten is found at the next of so many reads.
constexpr unsigned kReadsBetweenLooks = 64;
/// A process that has threads or children each time it is asked keeps what it has.
constexpr unsigned kTries = 4;
constexpr int kMovedFlags = O_ACCMODE | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | 0100000 | O_NOATIME;

struct Kept {
  unsigned owner;  ///< The process that opened it; 0: it does not move.
  unsigned reads;
  unsigned tries;
  std::uint64_t key;  ///< identity_key().
  tier::Identity identity;
};
constinit Kept g_kept[kKept] = {};

bool has_one_thread() {
  struct stat tasks;
  return call(kStatAt, AT_FDCWD, address("/proc/self/task"), address(&tasks), 0) == 0 && tasks.st_nlink == 3;
}

/// A child that ended and was waited for has no share any more; one that was not counts.
bool has_no_children() {
  char info[128];
  return call(SYS_waitid, kAllProcesses, 0, address(info), WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT | __WALL,
              0) == -ECHILD;
}

/// Puts the copy in the descriptor's place; false when it is not there, or the descriptor is another one by now.
/// REQUIRES: no signal comes, there is one thread, nobody shares the descriptor.
bool move(tier::Board& board, int fd, const tier::Identity& identity) {
  struct stat source;
  struct stat copy;
  const long flags = call(SYS_fcntl, fd, F_GETFL);
  const long close_on_exec = call(SYS_fcntl, fd, F_GETFD);
  if (flags < 0 || close_on_exec < 0 || (flags & O_ACCMODE) != O_RDONLY || (flags & ~kMovedFlags) != 0) return false;
  if (sys_fstat(fd, source) != 0 || device_of(source.st_dev) != tier::load(board.sources[identity.source].device) ||
      !(tier::identity_of(identity.source, source) == identity) || has_process_lock(source.st_dev, source.st_ino) ||
      has_duplicate(fd, source)) {
    return false;
  }
  const long offset = call(SYS_lseek, fd, 0, SEEK_CUR);
  const LentRoom room;
  if (!room) return false;
  const int wanted = (static_cast<int>(flags) & (O_NONBLOCK | O_NOATIME)) | O_CLOEXEC;
  const int found = open_finished(board, identity, wanted, copy, *room);
  if (found < 0) return false;
  const bool moved = offset >= 0 && (offset == 0 || call(SYS_lseek, found, offset, SEEK_SET) == offset) &&
                     sys_dup3(found, fd, close_on_exec != 0 ? O_CLOEXEC : 0) == fd;
  if (moved) remember(fd, copy, source);
  (void)sys_close(found);
  return moved;
}

}  // namespace

void keep_track(int fd, const tier::Identity& identity) {
  if (fd < 0 || fd >= kKept) return;
  Kept& kept = g_kept[fd];
  tier::store(kept.owner, 0U);
  kept.reads = 0;
  kept.tries = 0;
  kept.key = identity_key(identity);
  kept.identity = identity;
  tier::store(kept.owner, static_cast<unsigned>(call(SYS_getpid)));
}

void lose_track(int fd) {
  if (fd >= 0 && fd < kKept) tier::store(g_kept[fd].owner, 0U);
}

void move_if_finished(int fd) {
  if (fd < 0 || fd >= kKept) return;
  Kept& kept = g_kept[fd];
  const unsigned owner = tier::load(kept.owner);
  if (owner == 0) return;
  tier::Board* const known = board();
  if (known == nullptr) return;
  const bool is_due = ++kept.reads % kReadsBetweenLooks == 0;
  if (!is_due && !tier::is_made(*known, kept.key)) return;
  if (owner != static_cast<unsigned>(call(SYS_getpid))) return lose_track(fd);
  const std::uint64_t all = ~std::uint64_t{0};
  std::uint64_t before = 0;
  if (call(SYS_rt_sigprocmask, SIG_SETMASK, address(&all), address(&before), sizeof all) != 0) return;
  const tier::Identity identity = kept.identity;
  const bool may_move = has_one_thread() && has_no_children();
  // A look that was only due, in a process that could move it, found no copy: that is no failed try.
  const bool is_done = may_move && move(*known, fd, identity);
  if (is_done || (!(is_due && may_move) && ++kept.tries >= kTries)) lose_track(fd);
  (void)call(SYS_rt_sigprocmask, SIG_SETMASK, address(&before), 0, sizeof before);
}

}  // namespace freshet::tier::reader
