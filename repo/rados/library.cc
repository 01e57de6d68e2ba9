// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/library.h"

#include <dlfcn.h>

#include "core/base/format.h"

namespace freshet::rados {
namespace {

constexpr const char* kLibrary = "librados.so.2";

Result<Library> load() {
  void* const handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return fail(Code::unavailable, format("a repository in Ceph needs librados; install librados2: {}", ::dlerror()));
  }
  Library loaded;
#define FRESHET_RADOS_RESOLVE(name)                                              \
  loaded.name = reinterpret_cast<decltype(loaded.name)>(::dlsym(handle, #name)); \
  if (loaded.name == nullptr) return fail(Code::unavailable, "this machine's librados is too old: it has no " #name);
  FRESHET_RADOS_FUNCTIONS(FRESHET_RADOS_RESOLVE)
#undef FRESHET_RADOS_RESOLVE
  return loaded;
}

}  // namespace

Result<const Library*> library() {
  static const Result<Library> loaded = load();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace freshet::rados
