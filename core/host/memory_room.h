// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How much memory this process can still take. A machine may have plenty while a container's limit is near; what goes
/// above that limit is not an error but the kernel's killer, so it is asked for first.

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/result.h"

namespace freshet {

/// What the kernel could give to this process without killing anybody: the least of the machine's MemAvailable and of
/// what each control group from the process's own up to the topmost that can be seen has left (memory.max and
/// memory.high of version 2, memory.limit_in_bytes of version 1; page cache counts as left). Nothing when none of them
/// says. Another process may take it before this one does. `root` is put before /proc and /sys, for tests. Any thread.
std::optional<std::uint64_t> available_memory_bytes(const std::string& root = "");

/// out_of_space when so much is not available. The last page is never worth it: the more is wanted, up to a limit, the
/// more is left to everybody else.
Status check_memory_room(std::uint64_t bytes);

}  // namespace freshet
