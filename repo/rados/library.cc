// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/library.h"

#include <dlfcn.h>

#include <cerrno>
#include <system_error>

#include "core/base/format.h"

namespace freshet::rados {
namespace {

constexpr const char* kLibrary = "librados.so.2";

Result<Library> load() {
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return fail(Code::unavailable, format("Ceph's library cannot be loaded: {}", ::dlerror()));
  Library loaded;
#define FRESHET_RADOS_RESOLVE(name)                                              \
  loaded.name = reinterpret_cast<decltype(loaded.name)>(::dlsym(handle, #name)); \
  if (loaded.name == nullptr) return fail(Code::unavailable, "this machine's librados has no " #name);
  FRESHET_RADOS_FUNCTIONS(FRESHET_RADOS_RESOLVE)
#undef FRESHET_RADOS_RESOLVE
  return loaded;
}

Code code_of(int answer) {
  switch (-answer) {
    case ENOENT: return Code::not_found;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM: return Code::out_of_space;
    case EACCES:
    case EPERM:
    case EROFS: return Code::failed_precondition;
    case EINVAL:
    case ENAMETOOLONG: return Code::invalid_argument;
    case ETIMEDOUT:
    case ECANCELED:
    case EBUSY:
    case ESHUTDOWN:
    case ECONNREFUSED:
    case EAGAIN: return Code::unavailable;
    default: return Code::io_error;
  }
}

}  // namespace

Result<const Library*> library() {
  static const Result<Library> loaded = load();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

Error error_from(int answer, std::string_view what) {
  const int number = answer < 0 ? -answer : answer;
  std::string reason = std::generic_category().message(number);
  if (number == ETIMEDOUT) reason = "the cluster does not answer";
  if (number == ECANCELED) reason = "another process has taken this repository over";
  return Error(code_of(-number), format("{}: {}", what, reason));
}

}  // namespace freshet::rados
