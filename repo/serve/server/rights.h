// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which right a question takes of its client's key (transport/security/allow_list.h). Where a server has no keys,
/// whoever can connect has all of them. Private to this folder.

#include <string_view>

#include "repo/serve/wire/messages.h"
#include "transport/security/allow_list.h"

namespace freshet::rpc {

/// Shared records in a writer's ChangeShared. A put over several providers expects two and changes one.
inline constexpr std::size_t kCountedMax = 16;

/// Readers ask and fetch. Writers also put, say more of versions, and pin. Operators change what others rely on:
/// retire, gc, aliases, the placement, repairs. A put over several providers takes numbers and leaves references, so
/// writers may do that; numbers only grow for them, above kGivenNumberMax one by one.
Right needed_right(const wire::Request& question);
/// As the client is told it: "retire: only operators may (…)".
Error missing_right(const wire::Request& question);

}  // namespace freshet::rpc
