// SPDX-License-Identifier: Apache-2.0
// setuid() and its kin: who is another user afterwards gives the former one's board up at once, before it runs anything
// that the former one would not trust. A process that asks the kernel by itself is noticed at its next open.

#include <errno.h>
#include <sys/types.h>

#include "repo/tier/reader/hooks.h"
#include "repo/tier/reader/session.h"

namespace {

template <typename... Users>
int change_user(const char* name, int (*&known)(Users...), Users... users) {
  auto* const library = freshet::tier::reader::library_function(name, known);
  if (library == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  const int result = library(users...);
  const int error = errno;
  (void)freshet::tier::reader::board();
  errno = error;
  return result;
}

int (*g_setuid)(uid_t) = nullptr;
int (*g_seteuid)(uid_t) = nullptr;
int (*g_setreuid)(uid_t, uid_t) = nullptr;
int (*g_setresuid)(uid_t, uid_t, uid_t) = nullptr;

}  // namespace

FRESHET_READER_EXPORT int freshet_setuid(uid_t user) { return change_user("setuid", g_setuid, user); }
FRESHET_READER_EXPORT int freshet_seteuid(uid_t user) { return change_user("seteuid", g_seteuid, user); }
FRESHET_READER_EXPORT int freshet_setreuid(uid_t real, uid_t effective) {
  return change_user("setreuid", g_setreuid, real, effective);
}
FRESHET_READER_EXPORT int freshet_setresuid(uid_t real, uid_t effective, uid_t saved) {
  return change_user("setresuid", g_setresuid, real, effective, saved);
}

FRESHET_READER_NAME(setuid, freshet_setuid)
FRESHET_READER_NAME(seteuid, freshet_seteuid)
FRESHET_READER_NAME(setreuid, freshet_setreuid)
FRESHET_READER_NAME(setresuid, freshet_setresuid)
