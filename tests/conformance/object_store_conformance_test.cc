// SPDX-License-Identifier: Apache-2.0
/// The memory store; the one that speaks S3 is in tests/repo/s3, which has a server.

#include "tests/conformance/object_store_conformance.h"

#include "repo/object_store/memory_object_store.h"

namespace freshet {
namespace {

Result<StoreUnderTest> open_memory_store() {
  // The sender of signed requests reaches the same objects, and does not outlive them here.
  auto store = std::make_unique<MemoryObjectStore>();
  std::shared_ptr<SignedObjects> sender(store.get(), [](SignedObjects*) {});
  return StoreUnderTest{.store = std::move(store), .signed_objects = std::move(sender)};
}

INSTANTIATE_TEST_SUITE_P(ObjectStores, ObjectStoreConformance,
                         testing::Values(ObjectStoreCase{.name = "memory", .open = open_memory_store}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace freshet
