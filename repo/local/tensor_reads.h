// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The checks that every repository makes before a read, so that all of them answer alike. Private to this room.

#include <span>

#include "repo/repository.h"

namespace freshet {

/// failed_precondition for a version without weights; invalid_argument names the tensor that is not there, or for which
/// the caller has no room.
Status check_reads(const VersionRecord& record, std::span<const Repository::TensorRead> reads);

}  // namespace freshet
