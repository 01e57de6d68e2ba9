// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where a rank listens, and where it connects to meet.

#include <string>

#include "core/base/result.h"

namespace freshet::group {

/// "tcp://HOST:PORT" with the host in numbers: what can be bound, and what can be connected to. A name is looked up.
/// invalid_argument for what is no such address; not_found when nobody knows the name.
Result<std::string> meeting_address(const std::string& meet);

/// "tcp://ADDRESS:*", the address of this machine from which `meet` (in numbers) is reached: others reach it there,
/// too.
Result<std::string> own_address_towards(const std::string& meet);

}  // namespace freshet::group
