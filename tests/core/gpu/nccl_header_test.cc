// SPDX-License-Identifier: Apache-2.0
// Where a CUDA toolkit with NCCL is, the compiler compares our prototypes of NCCL with its header. This file does not
// compile when one of them differs.
#include <gtest/gtest.h>

#include "core/gpu/nccl.h"

#ifdef FRESHET_NCCL_HEADER
#include FRESHET_NCCL_HEADER
#endif

#if defined(FRESHET_NCCL_HEADER) && NCCL_VERSION_CODE >= 22300
#include <filesystem>

#include "core/gpu/collective.h"
#include "tests/core/gpu/same_shape.h"

namespace freshet::gpu {
namespace {

#define FRESHET_SAME_NCCL_PROTOTYPE(name, parameters) \
  static_assert(kSameShape<decltype(nccl::Library::name), decltype(&::name)>, #name);
FRESHET_NCCL_FUNCTIONS(FRESHET_SAME_NCCL_PROTOTYPE)
static_assert(kSameShape<decltype(nccl::Library::ncclGetErrorString), decltype(&::ncclGetErrorString)>);

static_assert(nccl::kSuccess == ncclSuccess && nccl::kInProgress == ncclInProgress && nccl::kBytes == ncclUint8);
FRESHET_SAME_LAYOUT(nccl::Id, ncclUniqueId);
static_assert(sizeof(CollectiveId) == sizeof(ncclUniqueId));
// Ours is the beginning of theirs.
static_assert(sizeof(nccl::Config) <= sizeof(ncclConfig_t) && alignof(nccl::Config) == alignof(ncclConfig_t));
FRESHET_SAME_FIELD(nccl::Config, size, ncclConfig_t, size);
FRESHET_SAME_FIELD(nccl::Config, magic, ncclConfig_t, magic);
FRESHET_SAME_FIELD(nccl::Config, version, ncclConfig_t, version);
FRESHET_SAME_FIELD(nccl::Config, blocking, ncclConfig_t, blocking);
FRESHET_SAME_FIELD(nccl::Config, cga_cluster_size, ncclConfig_t, cgaClusterSize);
FRESHET_SAME_FIELD(nccl::Config, blocks_min, ncclConfig_t, minCTAs);
FRESHET_SAME_FIELD(nccl::Config, blocks_max, ncclConfig_t, maxCTAs);
FRESHET_SAME_FIELD(nccl::Config, net_name, ncclConfig_t, netName);
static_assert(nccl::kVersionMin == 22300);  // As above.

TEST(NcclHeader, AgreesWithOurConfig) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl::Config ours;
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(ours.version, static_cast<unsigned int>(NCCL_VERSION(2, 17, 0)));
  EXPECT_EQ(ours.cga_cluster_size, theirs.cgaClusterSize);
  EXPECT_EQ(ours.blocks_min, theirs.minCTAs);
  EXPECT_EQ(ours.net_name, theirs.netName);
}

TEST(NcclHeader, TheLibraryBesideItExportsAllOurFunctions) {
  const auto toolkit = std::filesystem::path(FRESHET_NCCL_HEADER).parent_path().parent_path();
  for (const char* folder : {"lib64", "lib"}) {
    const auto library = toolkit / folder / "libnccl.so.2";
    if (!std::filesystem::exists(library)) continue;
    const auto version = nccl_version(library);
    ASSERT_TRUE(version) << version.error().message();
    EXPECT_TRUE(version->starts_with("NCCL 2.")) << *version;
    return;
  }
  GTEST_SKIP() << "the CUDA toolkit at " << toolkit << " has no NCCL";
}

}  // namespace
}  // namespace freshet::gpu

#elif defined(FRESHET_NCCL_HEADER)

TEST(NcclHeader, AgreesWithOurConfig) {
  GTEST_SKIP() << "nccl.h at " << FRESHET_NCCL_HEADER << " has NCCL " << NCCL_MAJOR << "." << NCCL_MINOR
               << ", and the channel nccl needs 2.23";
}

#else

TEST(NcclHeader, AgreesWithOurConfig) { GTEST_SKIP() << "no CUDA toolkit with nccl.h was found when this was built"; }

#endif
