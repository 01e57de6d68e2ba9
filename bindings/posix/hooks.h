// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a function of ours gets the names under which the C library has it. They are given by the assembler: the C
/// library's headers declare them with attributes that a definition must not contradict. exports.map lets out nothing
/// else.

#define FRESHET_READER_EXPORT extern "C" __attribute__((visibility("default"), used))
#define FRESHET_READER_NAME(name, function) \
  asm(".globl " #name "\n.type " #name ", @function\n.set " #name ", " #function);
