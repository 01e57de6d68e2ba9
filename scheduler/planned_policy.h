// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Viper's fixed and greedy schedules, and the optimal one on prediction, in a running loop: planned once, when the
/// warm-up is over. For parse_policy().

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "scheduler/policy.h"

namespace freshet {

enum class PlannedKind { fixed, greedy, optimal };

std::optional<PlannedKind> planned_kind(std::string_view text);

/// invalid_argument for a warm-up of no or more than a million steps.
Result<std::unique_ptr<Policy>> planned_policy(PlannedKind kind, std::uint64_t warmup_steps);

}  // namespace freshet
