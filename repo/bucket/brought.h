// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Looks for objects that other processes brought into a bucket. Private to this folder.

#include <span>
#include <vector>

#include "core/base/result.h"
#include "repo/backend/backend.h"
#include "repo/log/log_store.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// Of each part, whether its object is there with its length, and with its checksum where the store tells that, and a
/// batch may name it. Objects of one drawing (LogStore::draw_objects()) cost one listing of 1,000: the store has made
/// them under a signature of their checksum, so their name and length say enough. Others cost a request each, and so do
/// those that a listing does not have: it may be late.
Result<std::vector<bool>> find_brought_objects(const ObjectStore& store, const log::LogStore& log,
                                               std::span<const BroughtPart> parts);

}  // namespace freshet::bucket
