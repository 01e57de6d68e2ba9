// SPDX-License-Identifier: Apache-2.0
// Loaded into a program before its other libraries (LD_PRELOAD): notes each sync and each rename in the file that
// FRESHET_SYNC_JOURNAL names, in their order, so that a test knows what would outlive the host's end.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

void note(const std::string& line) {
  const char* const path = std::getenv("FRESHET_SYNC_JOURNAL");
  if (path == nullptr) return;
  const int kept = errno;
  const int journal = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (journal >= 0) {
    if (::write(journal, line.data(), line.size()) < 0) std::perror(path);
    ::close(journal);
  }
  errno = kept;
}

int noted_sync(long call, int descriptor) {
  const int result = static_cast<int>(::syscall(call, descriptor));
  struct stat status = {};
  if (result == 0 && ::fstat(descriptor, &status) == 0) note("sync " + std::to_string(status.st_ino) + "\n");
  return result;
}

}  // namespace

extern "C" int fsync(int descriptor) { return noted_sync(SYS_fsync, descriptor); }
extern "C" int fdatasync(int descriptor) { return noted_sync(SYS_fdatasync, descriptor); }

extern "C" int rename(const char* from, const char* to) noexcept {
  const int result = static_cast<int>(::syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  struct stat status = {};
  if (result == 0 && ::lstat(to, &status) == 0) note("name " + std::to_string(status.st_ino) + "\n");
  return result;
}
