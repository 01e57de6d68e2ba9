// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The cluster's clock. No operation of RADOS asks for it, and the times of objects are their clients'. But a lock of
/// Ceph's class "lock" ends by the clock of the daemon that keeps it, and the daemon tells this end. So a shared lock
/// that nobody waits for tells the time. Private to this folder.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace freshet::rados {

/// Of the class' method "lock": takes the lock anew, for some seconds. `cookie` is of one process.
std::string clock_lock_request(std::string_view cookie);
/// Of its method "get_info".
std::string clock_lock_question();
/// From the answer to the question: the time when the lock was last taken, in seconds since 1970. Nothing: it was not
/// understood.
std::optional<std::int64_t> time_of_clock_lock(std::string_view answer);

}  // namespace freshet::rados
