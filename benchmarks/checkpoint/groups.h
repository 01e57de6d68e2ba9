// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Four ranks of four hosts, on one machine and in memory: what each way of a group costs, and what gives lost hosts'
/// shares back.
Status measure_groups(const std::string& folder, bool quick, Report& report);

}  // namespace freshet::benchmarks
