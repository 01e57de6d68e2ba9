// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The same with providers that are processes of their own: what travels between them goes over the connection of the
/// questions, or over a data channel.

#include <cstdint>
#include <string>

#include "benchmarks/common/report.h"
#include "core/base/result.h"

namespace freshet::benchmarks {

/// Keeps a repository and serves it on loopback until its input ends. `room`: of a repository in memory.
Status provide(const std::string& backend, const std::string& folder, std::uint64_t room);

/// `folder` for repositories on the disk.
Status measure_providers(Report& report, const std::string& folder, bool quick);

}  // namespace freshet::benchmarks
