// SPDX-License-Identifier: Apache-2.0
/// What the path through a GPU costs, beside a copy within the device or over its bus. Without a device nothing is
/// measured, and each ratio says so.

#include "benchmarks/common/command_line.h"
#include "benchmarks/gpu/rows.h"

namespace freshet::benchmarks {
namespace {

Status measure(const CommonOptions& options, Report& report) {
  auto platform = gpu::open_driver_platform();
  if (!platform) {
    skip_gpu(platform.error().message(), report);
    return {};
  }
  GpuSizes sizes{.tells = true};
  if (options.quick) {
    sizes.model_bytes = std::uint64_t{2} << 30;
    sizes.captured_bytes = std::uint64_t{128} << 20;
    sizes.repetitions = 5;
  }
  measure_gpu(std::move(*platform), sizes, report);
  return {};
}

}  // namespace
}  // namespace freshet::benchmarks

int main(int argc, char** argv) {
  using namespace freshet::benchmarks;
  CommonOptions options;
  return run_benchmark(argc, argv, {.name = "gpu", .about = "The path through a GPU", .options = options},
                       [&](Report& report) { return measure(options, report); });
}
