// SPDX-License-Identifier: Apache-2.0
/// The benchmark `gpu` measures nothing without a device. That its rows do what they measure is shown on the host
/// device, whose figures nobody prints: each row compares what it made with what it must have made.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "benchmarks/gpu/rows.h"
#include "core/base/format.h"
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

/// The program beside ours in the build folder, and in a kit.
TEST(GpuTorchProgram, WithoutThePackageNoRowIsMeasured) {
  const auto program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin/benchmarks/gpu_torch";
  if (!std::filesystem::exists(program)) GTEST_SKIP() << program << " is not there";
  if (std::system("command -v python3 > /dev/null") != 0) GTEST_SKIP() << "there is no python3 here";
  // Isolated: no package of the user's or the environment's, so neither PyTorch's CUDA nor ours.
  FILE* const pipe = ::popen(format("python3 -I -S '{}' --json", program.string()).c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string line;
  for (int byte = std::fgetc(pipe); byte != EOF; byte = std::fgetc(pipe)) line.push_back(static_cast<char>(byte));
  ASSERT_EQ(::pclose(pipe), 0) << line;
  const auto told = nlohmann::json::parse(line);
  EXPECT_TRUE(told["ratios"].empty());
  EXPECT_TRUE(told["rows"].empty());
  EXPECT_EQ(told["skipped"].size(), 5U) << line;
  for (const auto& reason : told["skipped"])
    EXPECT_EQ(reason.get<std::string>().rfind("not measured: no package", 0), 0U);
}

}  // namespace
}  // namespace freshet::benchmarks
