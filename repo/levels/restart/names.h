// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether a restarting job calls its tensors as the version does.

#include <string>

#include "core/base/result.h"
#include "repo/levels/shards/shard.h"

namespace freshet::levels {

/// failed_precondition, with names: the version has a tensor that no rank takes, and lacks one that ranks hold. If that
/// is one tensor under two names, the job would train on from fresh values. `own` tensors do not count here if another
/// rank's are in both tables: ranks came or went. The answer is the same at all ranks. `which` is for the message.
Status check_not_renamed(const std::string& which, const TensorTable& version, const TensorTable& job);

}  // namespace freshet::levels
