// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How long bytes may be on their way between this process and a store. Private to this folder.

#include <chrono>

#include "core/base/deadline.h"
#include "repo/log/store_calls.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// All transfers share one line, which may be slow. A store that is silent, or too busy, is given up earlier.
inline Time time_to_move(const ObjectStore& store, std::size_t bytes) {
  const auto transfers = static_cast<Duration::rep>(store.transfers_max());
  return deadline_in(std::chrono::seconds(30) + transfers * log::time_to_carry(bytes));
}

}  // namespace freshet::bucket
