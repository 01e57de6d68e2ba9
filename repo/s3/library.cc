// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/library.h"

#include <dlfcn.h>

#include "core/base/format.h"

namespace freshet::s3 {
namespace {

constexpr const char* kCurlLibrary = "libcurl.so.4";

Result<CurlLibrary> load_curl() {
  void* const handle = ::dlopen(kCurlLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return fail(Code::unavailable, format("a repository in a bucket needs libcurl; install libcurl4: {}", ::dlerror()));
  }
  CurlLibrary loaded;
#define FRESHET_CURL_RESOLVE(name)                                               \
  loaded.name = reinterpret_cast<decltype(loaded.name)>(::dlsym(handle, #name)); \
  if (loaded.name == nullptr) return fail(Code::unavailable, "this machine's libcurl is too old: it has no " #name);
  FRESHET_CURL_FUNCTIONS(FRESHET_CURL_RESOLVE)
#undef FRESHET_CURL_RESOLVE
  if (const CURLcode code = loaded.curl_global_init(CURL_GLOBAL_DEFAULT); code != CURLE_OK) {
    return fail(Code::unavailable, format("libcurl does not start: {}", loaded.curl_easy_strerror(code)));
  }
  return loaded;
}

}  // namespace

Result<const CurlLibrary*> curl_library() {
  static const Result<CurlLibrary> loaded = load_curl();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

}  // namespace freshet::s3
