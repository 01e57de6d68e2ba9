// SPDX-License-Identifier: Apache-2.0
// open() and its kin, in every spelling that the C library exports.

#include <stdarg.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/kernel.h"

namespace {

using freshet::tier::reader::open_file;
using freshet::tier::reader::returned;

/// Only these take a mode; elsewhere there may be none to read.
bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

}  // namespace

#define FRESHET_READER_MODE(flags) \
  unsigned mode = 0;               \
  if (takes_mode(flags)) {         \
    va_list rest;                  \
    va_start(rest, flags);         \
    mode = va_arg(rest, unsigned); \
    va_end(rest);                  \
  }

FRESHET_READER_EXPORT int freshet_open(const char* path, int flags, ...) {
  FRESHET_READER_MODE(flags)
  return returned(open_file(AT_FDCWD, path, flags, mode));
}
FRESHET_READER_EXPORT int freshet_openat(int folder, const char* path, int flags, ...) {
  FRESHET_READER_MODE(flags)
  return returned(open_file(folder, path, flags, mode));
}
// The fortified forms: the compiler saw that there is no mode.
FRESHET_READER_EXPORT int freshet_open_2(const char* path, int flags) {
  return returned(open_file(AT_FDCWD, path, flags, 0));
}
FRESHET_READER_EXPORT int freshet_openat_2(int folder, const char* path, int flags) {
  return returned(open_file(folder, path, flags, 0));
}

FRESHET_READER_NAME(open, freshet_open)
FRESHET_READER_NAME(open64, freshet_open)
FRESHET_READER_NAME(__open, freshet_open)
FRESHET_READER_NAME(__open64, freshet_open)
FRESHET_READER_NAME(openat, freshet_openat)
FRESHET_READER_NAME(openat64, freshet_openat)
FRESHET_READER_NAME(__open_2, freshet_open_2)
FRESHET_READER_NAME(__open64_2, freshet_open_2)
FRESHET_READER_NAME(__openat_2, freshet_openat_2)
FRESHET_READER_NAME(__openat64_2, freshet_openat_2)
