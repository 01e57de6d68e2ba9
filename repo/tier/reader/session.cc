// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/reader/session.h"

#include <linux/mman.h>
#include <linux/un.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/paths.h"

namespace freshet::tier::reader {
namespace {

constexpr unsigned long kBoardPathRoom = sizeof(sockaddr_un{}.sun_path);

// 0 until it was looked for; kNone when there is none.
constexpr unsigned long kNone = 1;
unsigned long g_board = 0;
// Whose board it is. Written before g_board.
unsigned g_user = 0;
// Written with the same bytes by whoever comes first.
char g_ask_path[kBoardPathRoom];
char g_lock_path[kBoardPathRoom];

/// Both are written from the start each time; the value is the same in each thread.
bool hash_of_file(const char* path, unsigned long& hash) {
  const int fd = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return false;
  const LentRoom bytes;
  struct stat config;
  bool read = bytes && sys_fstat(fd, config) == 0 && S_ISREG(config.st_mode);
  hash = tier::kHashSeed;
  for (unsigned long all = 0; read;) {
    const long got = sys_read(fd, *bytes, sizeof *bytes);
    if (got == 0) break;
    all += static_cast<unsigned long>(got);
    read = got > 0 && all <= tier::kConfigBytesMax;
    if (read) hash = tier::hashed(hash, *bytes, static_cast<unsigned long>(got));
  }
  (void)sys_close(fd);
  return read;
}

char* put_text(char* at, const char* text) {
  while (*text != '\0') *at++ = *text++;
  return at;
}

/// The board's path: folder, user, hash.
char* put_board_path(char* at, unsigned long user, unsigned long hash) {
  at = put_text(at, tier::kBoardFolder);
  char digits[20];
  int count = 0;
  do digits[count++] = static_cast<char>('0' + user % 10);
  while ((user /= 10) != 0);
  while (count > 0) *at++ = digits[--count];
  *at++ = '/';
  return tier::put_hex(at, hash, 16);
}

tier::Board* map_board(const char* path, unsigned user) {
  const int fd = sys_openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return nullptr;
  struct stat file;
  long place = -1;
  if (sys_fstat(fd, file) == 0 && S_ISREG(file.st_mode) && file.st_uid == user && (file.st_mode & 077) == 0 &&
      file.st_size == static_cast<long>(sizeof(tier::Board))) {
    place = call(SYS_mmap, 0, sizeof(tier::Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  (void)sys_close(fd);
  if (place < 0 && place > -4096) return nullptr;
  return reinterpret_cast<tier::Board*>(place);
}

unsigned long find_board() {
  const char* config = ::getenv("FRESHET_TIER");
  unsigned long hash = 0;
  if (config == nullptr || *config == '\0' || !hash_of_file(config, hash)) return kNone;
  const auto user = static_cast<unsigned>(call(SYS_geteuid));
  char path[kBoardPathRoom];
  char* end = put_board_path(path, user, hash);
  *end = '\0';
  tier::Board* found = map_board(path, user);
  if (found == nullptr) return kNone;
  if (!is_sound(*found)) {
    (void)call(SYS_munmap, address(found), sizeof(tier::Board));
    return kNone;
  }
  tier::store(g_user, user);
  *put_text(end, ".ask") = '\0';
  ::memcpy(g_ask_path, path, sizeof path);
  *put_text(end, ".lock") = '\0';
  ::memcpy(g_lock_path, path, sizeof path);
  return reinterpret_cast<unsigned long>(found);
}

/// This process is somebody else now, and not to write to that board any more. Another thread may be in the middle of
/// it: the board's place becomes an empty one, where nothing is below a source.
void leave_board(unsigned long place) {
  if (!__atomic_compare_exchange_n(&g_board, &place, kNone, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
  const long emptied = call(SYS_mmap, static_cast<long>(place), sizeof(tier::Board), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (emptied != static_cast<long>(place)) (void)call(SYS_munmap, static_cast<long>(place), sizeof(tier::Board));
}

/// One write: the kernel mixes no two that are as short as a path. Opened for both directions, since a pipe that nobody
/// reads is a signal (SIGPIPE) to who writes.
void send_to_keeper(const char* mark, unsigned long mark_bytes, const char* path, unsigned long bytes) {
  const unsigned long all = mark_bytes + bytes + 1;
  if (all > tier::kRequestBytesMax) return;
  const int pipe = sys_openat(AT_FDCWD, g_ask_path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (pipe < 0) return;
  struct iovec parts[2] = {{const_cast<char*>(mark), mark_bytes}, {const_cast<char*>(path), bytes + 1}};
  struct stat seen;
  if (sys_fstat(pipe, seen) == 0 && S_ISFIFO(seen.st_mode) &&
      call(SYS_writev, pipe, address(parts), 2) != static_cast<long>(all)) {
    if (tier::Board* const known = board(); known != nullptr) tier::add(known->counters.lost_requests, 1);
  }
  (void)sys_close(pipe);
}

}  // namespace

tier::Board* board() {
  unsigned long known = __atomic_load_n(&g_board, __ATOMIC_ACQUIRE);
  if (known == 0) {
    const unsigned long found = find_board();
    if (__atomic_compare_exchange_n(&g_board, &known, found, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
      known = found;
    } else if (found != kNone) {
      (void)call(SYS_munmap, static_cast<long>(found), sizeof(tier::Board));
    }
  }
  if (known == kNone) return nullptr;
  if (static_cast<unsigned>(call(SYS_geteuid)) != tier::load(g_user)) {
    leave_board(known);
    return nullptr;
  }
  return reinterpret_cast<tier::Board*>(known);
}

bool has_keeper() {
  const int fd = sys_openat(AT_FDCWD, g_lock_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return false;
  struct flock lock;
  ::memset(&lock, 0, sizeof lock);
  lock.l_type = F_RDLCK;
  lock.l_start = tier::kKeeperByte;
  lock.l_len = 1;
  const long asked = call(SYS_fcntl, fd, F_OFD_GETLK, address(&lock));
  (void)sys_close(fd);
  return asked == 0 && lock.l_type != F_UNLCK;
}

void ask_for_copy(const char* path, unsigned long bytes) { send_to_keeper("", 0, path, bytes); }

void tell_miss(const char* path, unsigned long bytes) { send_to_keeper(&tier::kMissMark, 1, path, bytes); }

}  // namespace freshet::tier::reader
