// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/kernels/kernels.h"

#include "core/base/check.h"

namespace freshet::gpu {
namespace {

struct KernelFacts {
  std::string_view symbol;
  std::uint32_t threads_max;
  std::size_t argument_bytes;
};

constexpr KernelFacts kKernelFacts[kKernelCount] = {
    {"freshet_gpu_fill", kFillThreadsMax, sizeof(FillArguments)},
    {"freshet_gpu_copy", kCopyThreadsMax, sizeof(CopyArguments)},
    {"freshet_gpu_digest_sums", kDigestThreadsMax, sizeof(DigestSumsArguments)},
    {"freshet_gpu_digest_chain", kDigestThreadsMax, sizeof(DigestChainArguments)},
    {"freshet_gpu_pack", kDeltaThreadsMax, sizeof(PackArguments)},
    {"freshet_gpu_apply", kDeltaThreadsMax, sizeof(ApplyArguments)},
};

const KernelFacts& facts_of(Kernel kernel) {
  const auto index = static_cast<std::uint32_t>(kernel);
  FRESHET_CHECK(index < kKernelCount);
  return kKernelFacts[index];
}

}  // namespace

std::string_view symbol_of(Kernel kernel) { return facts_of(kernel).symbol; }
std::uint32_t threads_max_of(Kernel kernel) { return facts_of(kernel).threads_max; }
std::size_t argument_bytes_of(Kernel kernel) { return facts_of(kernel).argument_bytes; }

}  // namespace freshet::gpu
