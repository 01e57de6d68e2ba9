// SPDX-License-Identifier: Apache-2.0
// What tells of a descriptor: the source's identity, size and times, whatever the descriptor is.

#include <string.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/session.h"

namespace {

using namespace freshet::tier::reader;

long stat_of(int fd, struct stat* out) {
  const long result = call(SYS_fstat, fd, address(out));
  if (result == 0) {
    if (const auto* known = board(); known != nullptr) (void)show_source(*known, fd, *out);
  }
  return result;
}

bool names_descriptor(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 &&
         (path == nullptr || (reinterpret_cast<unsigned long>(path) >= 4096 && *path == '\0'));
}

long stat_at(int folder, const char* path, struct stat* out, int flags) {
  const long result = call(kStatAt, folder, address(path), address(out), flags);
  if (result == 0 && folder >= 0 && names_descriptor(path, flags)) {
    if (const auto* known = board(); known != nullptr) (void)show_source(*known, folder, *out);
  }
  return result;
}

void put_time(struct statx_timestamp& to, const struct timespec& from) {
  to.tv_sec = from.tv_sec;
  to.tv_nsec = static_cast<unsigned>(from.tv_nsec);
}

void show_source_x(int fd, struct statx& out) {
  const auto* known = board();
  struct stat seen;
  if (known == nullptr || sys_fstat(fd, seen) != 0 || !show_source(*known, fd, seen)) return;
  const std::uint64_t device = device_of(seen.st_dev);
  out.stx_dev_major = static_cast<unsigned>(device >> 32);
  out.stx_dev_minor = static_cast<unsigned>(device);
  out.stx_ino = seen.st_ino;
  out.stx_mode = static_cast<unsigned short>(seen.st_mode);
  out.stx_nlink = static_cast<unsigned>(seen.st_nlink);
  out.stx_uid = seen.st_uid;
  out.stx_gid = seen.st_gid;
  out.stx_size = static_cast<std::uint64_t>(seen.st_size);
  out.stx_blocks = static_cast<std::uint64_t>(seen.st_blocks);
  put_time(out.stx_atime, seen.st_atim);
  put_time(out.stx_mtime, seen.st_mtim);
  put_time(out.stx_ctime, seen.st_ctim);
  // The copy's own birth and mount are nobody's business.
  out.stx_mask &= STATX_BASIC_STATS;
}

}  // namespace

FRESHET_READER_EXPORT int freshet_fstat(int fd, struct stat* out) { return returned(stat_of(fd, out)); }
FRESHET_READER_EXPORT int freshet_fxstat(int /*version*/, int fd, struct stat* out) {
  return returned(stat_of(fd, out));
}
FRESHET_READER_EXPORT int freshet_fstatat(int folder, const char* path, struct stat* out, int flags) {
  return returned(stat_at(folder, path, out, flags));
}
FRESHET_READER_EXPORT int freshet_fxstatat(int /*version*/, int folder, const char* path, struct stat* out, int flags) {
  return returned(stat_at(folder, path, out, flags));
}
FRESHET_READER_EXPORT int freshet_statx(int folder, const char* path, int flags, unsigned mask, struct statx* out) {
  const long result = call(SYS_statx, folder, address(path), flags, mask, address(out));
  if (result == 0 && folder >= 0 && names_descriptor(path, flags)) show_source_x(folder, *out);
  return returned(result);
}

FRESHET_READER_NAME(fstat, freshet_fstat)
FRESHET_READER_NAME(fstat64, freshet_fstat)
FRESHET_READER_NAME(__fxstat, freshet_fxstat)
FRESHET_READER_NAME(__fxstat64, freshet_fxstat)
FRESHET_READER_NAME(fstatat, freshet_fstatat)
FRESHET_READER_NAME(fstatat64, freshet_fstatat)
FRESHET_READER_NAME(__fxstatat, freshet_fxstatat)
FRESHET_READER_NAME(__fxstatat64, freshet_fxstatat)
FRESHET_READER_NAME(statx, freshet_statx)
