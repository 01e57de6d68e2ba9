// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The schedule for machines that fail: a checkpoint as often as loses least time (predictor/failure_interval.h), from
/// the measured step and stall, the mean time between failures and the time of a restart.

#include <memory>
#include <string_view>

#include "core/base/result.h"
#include "scheduler/policy.h"

namespace freshet {

/// `text` is "failures:MTBF" or "failures:MTBF:RESTART", both in seconds, MTBF of the whole job. The first version
/// comes after the first step, which tells what a checkpoint costs, unless SchedulerOptions::stall_expected says it: a
/// job that starts again gives what it measured before. invalid_argument names what is wrong.
Result<std::unique_ptr<Policy>> parse_failure_policy(std::string_view text);

inline constexpr std::string_view kFailurePrefix = "failures:";

}  // namespace freshet
