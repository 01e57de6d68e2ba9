// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Asks an object store whether its creations exclude each other, before a repository relies on it.

#include <string_view>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"

namespace freshet {

/// Creates objects under new names in `folder` (a key without its last part), and removes them: two creations of one
/// name, one after the other; then 32 names, each raced for by four threads and so by four connections, four races at a
/// time. Each name must be created once, and must hold the bytes of this creation. Errors:
///   unsupported: it did not. The message tells what happened.
///   failed_precondition, unavailable, timed_out: the store could not be asked, or gave no clear answer.
Status check_exclusion(ObjectStore& store, std::string_view folder, Time deadline);

}  // namespace freshet
