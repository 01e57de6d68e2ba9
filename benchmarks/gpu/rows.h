// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The rows of the benchmark `gpu` that need a device and no framework. Each row checks what it measured: a wrong byte
/// is an error, and the row has no figure.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "benchmarks/common/report.h"
#include "core/gpu/device.h"

namespace freshet::benchmarks {

struct GpuSizes {
  std::uint64_t model_bytes = std::uint64_t{8} << 30;
  std::uint64_t tensor_bytes = std::uint64_t{32} << 20;
  std::uint64_t captured_bytes = std::uint64_t{512} << 20;  ///< Twice as many bytes of host memory are pinned.
  int repetitions = 11;
  /// Each ratio goes to standard error as soon as it is there: a machine that is lent for minutes may end before the
  /// report. Not for the host device, of which no figure counts.
  bool tells = false;
};

/// What is measured, in this order: the names of ratios.
std::vector<std::string_view> gpu_ratio_names();

/// Measures on the platform's first device. A ratio that was not measured is a skip of this name, with its reason.
void measure_gpu(const std::shared_ptr<gpu::Platform>& platform, const GpuSizes& sizes, Report& report);

/// No ratio was measured, for this reason.
void skip_gpu(std::string_view why, Report& report);

}  // namespace freshet::benchmarks
