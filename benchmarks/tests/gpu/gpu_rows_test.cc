// SPDX-License-Identifier: Apache-2.0
/// The benchmark `gpu` measures nothing without a device. That its rows do what they measure is shown on the host
/// device, whose figures nobody prints: each row compares what it made with what it must have made.

#include <gtest/gtest.h>

#include "benchmarks/gpu/rows.h"
#include "core/gpu/host_device.h"
#include "tests/support/from_environment.h"

namespace freshet::benchmarks {
namespace {

/// Chunks and blocks end within the tensors.
const GpuSizes kSmallGpu = {.model_bytes = 150'000, .tensor_bytes = 50'000, .captured_bytes = 65536, .repetitions = 1};

std::shared_ptr<gpu::Platform> host_gpu(int compute_major) {
  const std::uint64_t seed = from_environment("FRESHET_GPU_SEED", 1);
  return std::make_shared<gpu::HostPlatform>(gpu::HostOptions{.seed = seed, .compute_major = compute_major});
}

TEST(GpuRows, EachRowProvesWhatItMeasures) {
  Report report("gpu");
  measure_gpu(host_gpu(8), kSmallGpu, report);
  for (const std::string_view ratio : gpu_ratio_names()) {
    EXPECT_TRUE(report.has_ratio(std::string(ratio))) << ratio << "\n" << report.table();
  }
}

TEST(GpuRows, WithoutKernelsTheirRowsAreNotMeasured) {
  Report report("gpu");
  measure_gpu(host_gpu(7), kSmallGpu, report);
  EXPECT_FALSE(report.has_ratio("digest_vs_copy"));
  EXPECT_FALSE(report.has_ratio("apply_vs_copy_8pct"));
  EXPECT_TRUE(report.has_ratio("capture_vs_pinned"));
  EXPECT_NE(report.table().find("skipped digest_vs_copy: not measured: "), std::string::npos) << report.table();
}

TEST(GpuRows, AModelThatFindsNoRoomIsNotMeasured) {
  Report report("gpu");
  GpuSizes sizes = kSmallGpu;
  sizes.model_bytes = std::uint64_t{1} << 40;
  sizes.tensor_bytes = std::uint64_t{1} << 20;
  measure_gpu(host_gpu(8), sizes, report);
  for (const std::string_view ratio : gpu_ratio_names()) EXPECT_FALSE(report.has_ratio(std::string(ratio))) << ratio;
}

TEST(GpuRows, WithoutADeviceThereIsNoFigure) {
  Report report("gpu");
  skip_gpu("no device", report);
  const std::string table = report.table();
  for (const std::string_view ratio : gpu_ratio_names()) {
    EXPECT_FALSE(report.has_ratio(std::string(ratio)));
    EXPECT_NE(table.find("skipped " + std::string(ratio) + ": not measured: no device"), std::string::npos) << table;
  }
  EXPECT_EQ(table.find("| ms |"), std::string::npos) << table;
}

}  // namespace
}  // namespace freshet::benchmarks
