// SPDX-License-Identifier: Apache-2.0
// Reads at an offset that the program names, and duplicates. A kept descriptor moves to its copy before such a read
// (kept.h).

#include <errno.h>
#include <stddef.h>
#include <sys/uio.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/kept.h"
#include "repo/tier/reader/kernel.h"

// The C library's own, which a thread may be cancelled in; and how it ends a program whose buffer is too small.
extern "C" ssize_t library_pread(int fd, void* out, size_t bytes, off_t at) asm("__pread64");
extern "C" [[noreturn]] void library_stop() asm("__chk_fail");

namespace {

using namespace freshet::tier::reader;

ssize_t read_parts(int fd, const struct iovec* parts, int count, off_t at, int flags) {
  // -1 is the descriptor's own offset.
  if (at != -1) move_if_finished(fd);
  const long result = flags == 0 && at != -1 ? call(SYS_preadv, fd, address(parts), count, at)
                                             : call(SYS_preadv2, fd, address(parts), count, at, 0, flags);
  return result < 0 ? returned(result) : result;
}

}  // namespace

FRESHET_READER_EXPORT ssize_t freshet_pread(int fd, void* out, size_t bytes, off_t at) {
  move_if_finished(fd);
  return library_pread(fd, out, bytes, at);
}
FRESHET_READER_EXPORT ssize_t freshet_pread_chk(int fd, void* out, size_t bytes, off_t at, size_t room) {
  if (bytes > room) library_stop();
  return freshet_pread(fd, out, bytes, at);
}
FRESHET_READER_EXPORT ssize_t freshet_preadv(int fd, const struct iovec* parts, int count, off_t at) {
  if (at == -1) return returned(-EINVAL);
  return read_parts(fd, parts, count, at, 0);
}
FRESHET_READER_EXPORT ssize_t freshet_preadv2(int fd, const struct iovec* parts, int count, off_t at, int flags) {
  return read_parts(fd, parts, count, at, flags);
}

FRESHET_READER_EXPORT int freshet_dup(int fd) {
  lose_track(fd);
  const long result = call(SYS_dup, fd);
  if (result >= 0) lose_track(static_cast<int>(result));
  return returned(result);
}
FRESHET_READER_EXPORT int freshet_dup3(int fd, int to, int flags) {
  lose_track(fd);
  lose_track(to);
  return returned(call(SYS_dup3, fd, to, flags));
}
FRESHET_READER_EXPORT int freshet_dup2(int fd, int to) {
  if (fd != to) return freshet_dup3(fd, to, 0);
  const long result = call(SYS_fcntl, fd, F_GETFD);
  return result < 0 ? returned(result) : to;
}

FRESHET_READER_NAME(pread, freshet_pread)
FRESHET_READER_NAME(pread64, freshet_pread)
FRESHET_READER_NAME(__pread_chk, freshet_pread_chk)
FRESHET_READER_NAME(__pread64_chk, freshet_pread_chk)
FRESHET_READER_NAME(preadv, freshet_preadv)
FRESHET_READER_NAME(preadv64, freshet_preadv)
FRESHET_READER_NAME(preadv2, freshet_preadv2)
FRESHET_READER_NAME(preadv64v2, freshet_preadv2)
FRESHET_READER_NAME(dup, freshet_dup)
FRESHET_READER_NAME(dup2, freshet_dup2)
FRESHET_READER_NAME(__dup2, freshet_dup2)
FRESHET_READER_NAME(dup3, freshet_dup3)
