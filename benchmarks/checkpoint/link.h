// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "benchmarks/checkpoint/options.h"
#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Ranks in network namespaces, each with a link of limited rate: how long until a group has a version, and until a
/// lost host's share is back, against plain TCP streams of these bytes over the same links. unavailable without root.
Status measure_link(const CheckpointOptions& options, Report& report);

}  // namespace freshet::benchmarks
