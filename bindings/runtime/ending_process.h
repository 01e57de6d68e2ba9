// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace freshet {

/// Whether the kernel is about to end this process of this host, or has ended it: the process was killed, or its first
/// thread has exited. Such a process still holds its locks and sockets, for as long as it takes to free its memory or
/// to finish a write. False where the kernel does not tell.
bool is_ending(long process);

}  // namespace freshet
