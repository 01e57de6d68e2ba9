// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A shared library that may be missing: loaded for a look, never linked.

#include <dlfcn.h>

namespace freshet::cli {

/// Stays loaded: libraries that start threads of their own do not survive being unloaded.
class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {}

  explicit operator bool() const { return handle_ != nullptr; }

  /// Null when the library or the name is missing.
  template <typename Function>
  Function* function(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
};

}  // namespace freshet::cli
