// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/backend_conformance.h"

#include "tests/fault/fault_backend.h"

namespace freshet {
namespace {

Result<std::unique_ptr<Backend>> open_memory(const std::string&) { return make_memory_backend(); }

Result<std::unique_ptr<Backend>> open_rocks(const std::string& folder) {
  return open_rocks_backend({.folder = folder});
}

// The wrapper that injects faults must be a good backend itself, or its tests would prove nothing.
BackendCase wrapped(const BackendCase& inner) {
  return {.name = inner.name + "_in_fault_wrapper",
          .open = [inner](const std::string& folder) -> Result<std::unique_ptr<Backend>> {
            FRESHET_ASSIGN(std::unique_ptr<Backend> opened, inner.open(folder));
            return std::make_unique<FaultBackend>(std::move(opened), FaultBackend::Plan{});
          }};
}

const BackendCase kMemory{.name = "memory", .open = open_memory};
const BackendCase kRocks{.name = "rocksdb", .open = open_rocks};

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformance,
                         testing::Values(kMemory, kRocks, wrapped(kMemory), wrapped(kRocks)),
                         [](const auto& instance) { return instance.param.name; });

INSTANTIATE_TEST_SUITE_P(Backends, DurableBackendConformance, testing::Values(kRocks, wrapped(kRocks)),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
