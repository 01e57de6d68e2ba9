// SPDX-License-Identifier: Apache-2.0
// What only the source can do: locks, and changes of what a file is. The descriptor goes back to the source first.

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/kept.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/paths.h"
#include "repo/tier/reader/session.h"

namespace {

using namespace freshet::tier::reader;

/// The call, made at the source.
long at_source(int fd, long number, long b = 0, long c = 0, long d = 0, long e = 0, bool locks_open_file = false) {
  lose_track(fd);
  if (auto* known = board(); known != nullptr) {
    if (const int error = hand_back(*known, fd, locks_open_file); error < 0) return error;
  }
  return call(number, fd, b, c, d, e);
}

/// A lock of the open file, which all have that share it.
long lock_at_source(int fd, long number, long b, long c = 0) { return at_source(fd, number, b, c, 0, 0, true); }

/// Whether the program gives up a lock. What it names may be at no memory: the kernel is to refuse that.
bool unlocks(const struct flock* lock) {
  const auto* const type = reinterpret_cast<const char*>(&lock->l_type);
  return is_readable(type) && is_readable(type + sizeof lock->l_type - 1) && lock->l_type == F_UNLCK;
}

/// A lock of the process. It is noted before it is taken: another thread may open the file just then.
long process_lock_at_source(int fd, long command, long lock) {
  lose_track(fd);
  auto* known = board();
  if (known == nullptr) return call(SYS_fcntl, fd, command, lock);
  if (const int error = hand_back(*known, fd); error < 0) return error;
  note_process_lock(*known, fd);
  return call(SYS_fcntl, fd, command, lock);
}

bool is_for_source(int command) {
  switch (command) {
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
    case F_OFD_GETLK:
    case F_OFD_SETLK:
    case F_OFD_SETLKW:
    case F_SETLEASE:
    case F_NOTIFY: return true;
    default: return false;
  }
}

/// The kernel's answer to F_GETOWN cannot tell a process group from an error; this is how the C library asks.
int owner_of(int fd) {
  struct f_owner_ex owner;
  const long result = call(SYS_fcntl, fd, F_GETOWN_EX, address(&owner));
  if (result < 0) return returned(result);
  return owner.type == F_OWNER_PGRP ? -owner.pid : owner.pid;
}

}  // namespace

FRESHET_READER_EXPORT int freshet_fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  const long argument = va_arg(rest, long);
  va_end(rest);
  if (command == F_GETOWN) return owner_of(fd);
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
    lose_track(fd);
    const long result = call(SYS_fcntl, fd, command, argument);
    if (result >= 0) lose_track(static_cast<int>(result));
    return returned(result);
  }
  if (command == F_OFD_SETLK || command == F_OFD_SETLKW)
    return returned(lock_at_source(fd, SYS_fcntl, command, argument));
  if (command == F_SETLK || command == F_SETLKW) {
    return returned(unlocks(reinterpret_cast<const struct flock*>(argument))
                        ? at_source(fd, SYS_fcntl, command, argument)
                        : process_lock_at_source(fd, command, argument));
  }
  return returned(is_for_source(command) ? at_source(fd, SYS_fcntl, command, argument)
                                         : call(SYS_fcntl, fd, command, argument));
}
FRESHET_READER_EXPORT int freshet_flock(int fd, int operation) {
  return returned(lock_at_source(fd, SYS_flock, operation));
}
FRESHET_READER_EXPORT int freshet_lockf(int fd, int command, off_t bytes) {
  struct flock lock;
  ::memset(&lock, 0, sizeof lock);
  lock.l_whence = SEEK_CUR;
  lock.l_len = bytes;
  lock.l_type = F_WRLCK;
  int operation = F_SETLK;
  switch (command) {
    case F_TEST: {
      lock.l_type = F_RDLCK;
      const long result = at_source(fd, SYS_fcntl, F_GETLK, address(&lock));
      if (result < 0) return returned(result);
      if (lock.l_type == F_UNLCK || lock.l_pid == static_cast<int>(call(SYS_getpid))) return 0;
      return returned(-EACCES);
    }
    case F_ULOCK: lock.l_type = F_UNLCK; break;
    case F_LOCK: operation = F_SETLKW; break;
    case F_TLOCK: break;
    default: return returned(-EINVAL);
  }
  return returned(lock.l_type == F_UNLCK ? at_source(fd, SYS_fcntl, operation, address(&lock))
                                         : process_lock_at_source(fd, operation, address(&lock)));
}
/// A copy may not be executed.
FRESHET_READER_EXPORT int freshet_fexecve(int fd, char* const* words, char* const* variables) {
  if (fd < 0 || words == nullptr || variables == nullptr) return returned(-EINVAL);
  return returned(at_source(fd, SYS_execveat, address(""), address(words), address(variables), AT_EMPTY_PATH));
}
FRESHET_READER_EXPORT int freshet_fchmod(int fd, mode_t mode) { return returned(at_source(fd, SYS_fchmod, mode)); }
FRESHET_READER_EXPORT int freshet_fchown(int fd, uid_t owner, gid_t group) {
  return returned(at_source(fd, SYS_fchown, owner, group));
}
FRESHET_READER_EXPORT int freshet_futimens(int fd, const struct timespec* times) {
  return returned(fd < 0 ? -EBADF : at_source(fd, SYS_utimensat, 0, address(times)));
}
FRESHET_READER_EXPORT int freshet_futimes(int fd, const struct timeval* times) {
  struct timespec exact[2];
  if (times != nullptr && !(is_readable(reinterpret_cast<const char*>(times)) &&
                            is_readable(reinterpret_cast<const char*>(times + 2) - 1))) {
    return returned(-EFAULT);
  }
  for (int i = 0; times != nullptr && i < 2; ++i) {
    if (times[i].tv_usec < 0 || times[i].tv_usec >= 1'000'000) return returned(-EINVAL);
    exact[i] = {.tv_sec = times[i].tv_sec, .tv_nsec = times[i].tv_usec * 1000};
  }
  return freshet_futimens(fd, times == nullptr ? nullptr : exact);
}
FRESHET_READER_EXPORT ssize_t freshet_fgetxattr(int fd, const char* name, void* value, size_t bytes) {
  const long result = at_source(fd, SYS_fgetxattr, address(name), address(value), static_cast<long>(bytes));
  return result < 0 ? returned(result) : result;
}
FRESHET_READER_EXPORT ssize_t freshet_flistxattr(int fd, char* names, size_t bytes) {
  const long result = at_source(fd, SYS_flistxattr, address(names), static_cast<long>(bytes));
  return result < 0 ? returned(result) : result;
}
FRESHET_READER_EXPORT int freshet_fsetxattr(int fd, const char* name, const void* value, size_t bytes, int flags) {
  return returned(at_source(fd, SYS_fsetxattr, address(name), address(value), static_cast<long>(bytes), flags));
}
FRESHET_READER_EXPORT int freshet_fremovexattr(int fd, const char* name) {
  return returned(at_source(fd, SYS_fremovexattr, address(name)));
}

FRESHET_READER_NAME(fcntl, freshet_fcntl)
FRESHET_READER_NAME(fcntl64, freshet_fcntl)
FRESHET_READER_NAME(__fcntl, freshet_fcntl)
FRESHET_READER_NAME(flock, freshet_flock)
FRESHET_READER_NAME(lockf, freshet_lockf)
FRESHET_READER_NAME(lockf64, freshet_lockf)
FRESHET_READER_NAME(fexecve, freshet_fexecve)
FRESHET_READER_NAME(fchmod, freshet_fchmod)
FRESHET_READER_NAME(fchown, freshet_fchown)
FRESHET_READER_NAME(futimens, freshet_futimens)
FRESHET_READER_NAME(futimes, freshet_futimes)
FRESHET_READER_NAME(fgetxattr, freshet_fgetxattr)
FRESHET_READER_NAME(flistxattr, freshet_flistxattr)
FRESHET_READER_NAME(fsetxattr, freshet_fsetxattr)
FRESHET_READER_NAME(fremovexattr, freshet_fremovexattr)
