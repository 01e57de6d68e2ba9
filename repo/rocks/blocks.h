// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How values are laid into the blocks of a table. Private to this room.

#include <memory>

#include <rocksdb/flush_block_policy.h>

namespace freshet {

/// Small values share a block; a large one has one to itself, and keys of different kinds (by their first byte) never
/// share one where `by_kind`. So damage within a payload hides no other value, and no list of what there is; and a
/// small value is read without a large one behind it.
std::shared_ptr<rocksdb::FlushBlockPolicyFactory> make_block_layout(bool by_kind);

}  // namespace freshet
