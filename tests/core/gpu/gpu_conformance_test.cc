// SPDX-License-Identifier: Apache-2.0
#include "tests/core/gpu/gpu_conformance.h"

#include <iostream>

namespace freshet::gpu {

void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }

namespace {

/// One case where a driver and a device are, none elsewhere: the reason is told once, below.
std::vector<EngineCase> driver_cases() {
  if (!open_driver_platform()) return {};
  return {{.name = "driver", .is_host = false}};
}

INSTANTIATE_TEST_SUITE_P(Host, GpuConformance, testing::Values(EngineCase{.name = "host", .is_host = true}));
INSTANTIATE_TEST_SUITE_P(Driver, GpuConformance, testing::ValuesIn(driver_cases()));

TEST(GpuDriver, RunsTheConformanceSuiteToo) {
  const auto platform = open_driver_platform();
  if (!platform) GTEST_SKIP() << platform.error().message();
  std::cout << (*platform)->description() << "\n";
  for (const DeviceInfo& info : must((*platform)->devices())) {
    std::cout << info.uuid.text() << " " << info.name << ", " << (info.bytes >> 20) << " MiB, compute capability "
              << info.compute_major << "." << info.compute_minor << "\n";
  }
}

}  // namespace
}  // namespace freshet::gpu
