// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Decides at open: the finished copy, or the source. Any thread, signal handlers too.

namespace freshet::reader {

/// What openat() does, with -errno for an error.
int open_file(int folder, const char* path, int flags, unsigned mode);

/// 0 or the result, as the C library's functions return it.
int returned(long result);

}  // namespace freshet::reader
