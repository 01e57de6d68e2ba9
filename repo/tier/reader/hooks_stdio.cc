// SPDX-License-Identifier: Apache-2.0
// fopen() and freopen(). The C library opens files for its streams by a name of its own, so streams are made here. Its
// own functions are looked up (dlsym allocates) only for what is not a plain read, never while a program's allocator
// starts.

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "repo/tier/reader/decide.h"
#include "repo/tier/reader/descriptors.h"
#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/kernel.h"
#include "repo/tier/reader/paths.h"
#include "repo/tier/reader/session.h"

namespace {

using namespace freshet::tier::reader;
using Open = FILE*(const char*, const char*);
using Reopen = FILE*(const char*, const char*, FILE*);

Open* g_open = nullptr;
Reopen* g_reopen = nullptr;

/// "r", "rb", "re" and so on: O_RDONLY and what else the letters say. -1 for every other mode.
int read_flags(const char* mode) {
  if (*mode != 'r') return -1;
  int flags = O_RDONLY;
  for (int i = 1; mode[i] != '\0'; ++i) {
    if (mode[i] == 'e') {
      flags |= O_CLOEXEC;
    } else if (mode[i] != 'b' && mode[i] != 'm' && mode[i] != 'c') {
      return -1;
    }
  }
  return flags;
}

/// What the C library is to open for a mode that is not a plain read: the path, or a name of the source behind it,
/// which `source` keeps until it is closed. nullptr when the source is another file by now.
const char* written_path(const char* path, char (&link)[kLinkBytes], int& source) {
  source = source_of_written(path);
  if (source == kNoCopy) return path;
  if (source < 0) return nullptr;
  put_descriptor_link(link, source);
  return link;
}

}  // namespace

FRESHET_READER_EXPORT FILE* freshet_fopen(const char* path, const char* mode) {
  const int flags = read_flags(mode);
  if (flags < 0 || board() == nullptr) {
    Open* const library = library_function("fopen64", g_open);
    char link[kLinkBytes];
    int source = kNoCopy;
    const char* const at = flags < 0 ? written_path(path, link, source) : path;
    errno = at == nullptr ? -source : ENOSYS;
    FILE* const stream = library != nullptr && at != nullptr ? library(at, mode) : nullptr;
    const int error = errno;
    if (source >= 0) (void)sys_close(source);
    errno = error;
    return stream;
  }
  const int fd = open_file(AT_FDCWD, path, flags, 0);
  if (fd < 0) {
    errno = -fd;
    return nullptr;
  }
  FILE* const stream = ::fdopen(fd, mode);
  if (stream == nullptr) {
    const int error = errno;
    (void)sys_close(fd);
    errno = error;
  }
  return stream;
}

FRESHET_READER_EXPORT FILE* freshet_freopen(const char* path, const char* mode, FILE* stream) {
  Reopen* const library = library_function("freopen64", g_reopen);
  if (library == nullptr) {
    errno = ENOSYS;
    return nullptr;
  }
  const int flags = read_flags(mode);
  if (path == nullptr || board() == nullptr) return library(path, mode, stream);
  if (flags < 0) {
    char link[kLinkBytes];
    int source = kNoCopy;
    const char* const at = written_path(path, link, source);
    // What leads nowhere closes the stream, as every path does that cannot be opened.
    FILE* const reopened = library(at == nullptr ? "" : at, mode, stream);
    const int error = at == nullptr ? -source : errno;
    if (source >= 0) (void)sys_close(source);
    errno = error;
    return reopened;
  }
  // A pipe would be opened twice, and its writer come to the first.
  struct stat before;
  if (call(kStatAt, AT_FDCWD, address(path), address(&before)) != 0 || !S_ISREG(before.st_mode)) {
    return library(path, mode, stream);
  }
  // The stream is kept by its address; it opens what was decided for by its name in /proc.
  const int fd = open_file(AT_FDCWD, path, flags | O_CLOEXEC, 0);
  char link[kLinkBytes];
  if (fd >= 0) put_descriptor_link(link, fd);
  struct stat seen;
  const bool regular = fd >= 0 && sys_fstat(fd, seen) == 0 && S_ISREG(seen.st_mode);
  FILE* const reopened = library(regular ? link : path, mode, stream);
  const int error = errno;
  if (fd >= 0) (void)sys_close(fd);
  errno = error;
  return reopened;
}

FRESHET_READER_NAME(fopen, freshet_fopen)
FRESHET_READER_NAME(fopen64, freshet_fopen)
FRESHET_READER_NAME(_IO_fopen, freshet_fopen)
FRESHET_READER_NAME(freopen, freshet_freopen)
FRESHET_READER_NAME(freopen64, freshet_freopen)
