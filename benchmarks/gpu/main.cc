// SPDX-License-Identifier: Apache-2.0
/// What the path through a GPU costs, beside a copy within the device or over its bus. Without a device nothing is
/// measured, and each ratio says so.

#include <utility>

#include "benchmarks/common/command_line.h"
#include "benchmarks/gpu/rows.h"
#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

struct GpuOptions : CommonOptions {
  bool check = false;
};

/// The rows with tensors of which each is cut into several blocks. No figure of theirs counts.
Status check_rows(const std::shared_ptr<gpu::Platform>& platform, Report& report) {
  Report checked("gpu");
  measure_gpu(platform,
              {.model_bytes = 3'000'000, .tensor_bytes = 1'000'000, .captured_bytes = 1 << 20, .repetitions = 1},
              checked);
  for (const std::string_view ratio : gpu_ratio_names()) {
    const std::string name(ratio);
    if (!checked.has_ratio(name)) return fail(Code::corrupt, format("--check: {}\n{}", name, checked.table()));
    report.skip(name, "the bytes are right; --check measures nothing");
  }
  return {};
}

Status measure(const GpuOptions& options, Report& report) {
  auto platform = gpu::open_driver_platform();
  if (!platform) {
    skip_gpu(platform.error().message(), report);
    return {};
  }
  if (options.check) return check_rows(std::move(*platform), report);
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
  GpuOptions options;
  const auto add_options = [&](CLI::App& app) {
    app.add_flag("--check", options.check, "Each row with small tensors: compare its bytes, print no figure");
  };
  return run_benchmark(
      argc, argv, {.name = "gpu", .about = "The path through a GPU", .options = options, .add_options = add_options},
      [&](Report& report) { return measure(options, report); });
}
