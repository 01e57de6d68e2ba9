// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a function of ours gets the names under which the C library has it. They are given by the assembler: the C
/// library's headers declare them with attributes that a definition must not contradict. exports.map lets out nothing
/// else.

#include <dlfcn.h>

namespace freshet::tier::reader {

/// The C library's own function, looked up at its first use; nullptr when there is none.
template <typename Function>
Function* library_function(const char* name, Function*& known) {
  Function* found = __atomic_load_n(&known, __ATOMIC_ACQUIRE);
  if (found == nullptr) {
    found = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
    __atomic_store_n(&known, found, __ATOMIC_RELEASE);
  }
  return found;
}

}  // namespace freshet::tier::reader

#define FRESHET_READER_EXPORT extern "C" __attribute__((visibility("default"), used))
#define FRESHET_READER_NAME(name, function) \
  asm(".globl " #name "\n.type " #name ", @function\n.set " #name ", " #function);
