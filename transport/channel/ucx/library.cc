// SPDX-License-Identifier: Apache-2.0
#include "transport/channel/ucx/library.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <cstdlib>

#include "core/base/env.h"
#include "core/base/format.h"
#include "transport/channel/ucx/ucx_channel.h"

namespace freshet::channel::ucx {
namespace {

bool is_set(const char* variable) { return system_env().variable(variable).has_value(); }

/// Remembers how this process handles signals, and gives back what was changed since.
class SignalKeeper {
 public:
  SignalKeeper() {
    for (int signal = 1; signal < kSignals; ++signal) ::sigaction(signal, nullptr, &actions_[signal]);
  }
  void restore() const {
    for (int signal = 1; signal < kSignals; ++signal) {
      struct sigaction now {};
      if (::sigaction(signal, nullptr, &now) != 0 || now.sa_sigaction == actions_[signal].sa_sigaction) continue;
      ::sigaction(signal, &actions_[signal], nullptr);
    }
  }

 private:
  static constexpr int kSignals = 32;
  std::array<struct sigaction, kSignals> actions_{};
};

Result<Library> resolve(void* handle) {
  Library library;
#define FRESHET_UCX_RESOLVE(name)                                                  \
  library.name = reinterpret_cast<decltype(library.name)>(::dlsym(handle, #name)); \
  if (library.name == nullptr) return fail(Code::unavailable, "this machine's libucp has no " #name);
  FRESHET_UCX_FUNCTIONS(FRESHET_UCX_RESOLVE)
#undef FRESHET_UCX_RESOLVE
  return library;
}

Result<Library> load() {
  // Somebody else's UCX is configured as they want it.
  const bool is_ours = ::dlopen(FRESHET_UCX_LIBRARY, RTLD_NOW | RTLD_NOLOAD) == nullptr;
#ifdef __SANITIZE_THREAD__
  // UCX's hooks in madvise() are called when a thread ends, where ThreadSanitizer stands no interceptor any more.
  ::setenv("UCX_MEM_EVENTS", "n", /*overwrite=*/0);
#endif
  const SignalKeeper signals;
  void* handle = ::dlopen(FRESHET_UCX_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return fail(Code::unavailable, format("UCX cannot be loaded: {}", ::dlerror()));
  using SetOption = ucs_status_t (*)(const char* name, const char* value);
  const auto set_option = reinterpret_cast<SetOption>(::dlsym(handle, "ucs_global_opts_set_value"));
  if (is_ours && !is_set("UCX_HANDLE_ERRORS") && !is_set("UCX_ERROR_SIGNALS") && !is_set("UCX_DEBUG_SIGNO")) {
    signals.restore();
    if (set_option != nullptr) set_option("HANDLE_ERRORS", "none");
  }
  if (is_ours && set_option != nullptr && !is_set("UCX_LOG_LEVEL")) set_option("LOG_LEVEL", "fatal");
  return resolve(handle);
}

Code code_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT: return Code::out_of_space;
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_BUSY: return Code::unavailable;
    case UCS_ERR_CANCELED: return Code::cancelled;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED: return Code::unsupported;
    default: return Code::io_error;
  }
}

}  // namespace

Result<const Library*> load_library() {
  static const Result<Library> loaded = load();
  if (!loaded) return fail(loaded.error());
  return &*loaded;
}

Error error_from(const Library& ucx, ucs_status_t status, std::string_view what) {
  return Error(code_of(status), format("{}: {}", what, ucx.ucs_status_string(status)));
}

}  // namespace freshet::channel::ucx

namespace freshet::channel {

Result<std::string> ucx_version() {
  FRESHET_ASSIGN(const ucx::Library* library, ucx::load_library());
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  library->ucp_get_version(&major, &minor, &release);
  return format("{}.{}.{}", major, minor, release);
}

}  // namespace freshet::channel
