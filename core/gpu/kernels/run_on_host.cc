// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "core/base/format.h"
#include "core/gpu/kernels/host/fibers.h"
#include "core/gpu/kernels/kernels.cu"
#include "core/gpu/kernels/kernels.h"

namespace freshet::gpu {
namespace {

template <typename Arguments, void kKernel(const Arguments&)>
void run_kernel(const void* arguments) {
  kKernel(*static_cast<const Arguments*>(arguments));
}

using KernelBody = void (*)(const void*);
constexpr KernelBody kKernelBodies[kKernelCount] = {
    run_kernel<FillArguments, freshet_gpu_fill>,
    run_kernel<CopyArguments, freshet_gpu_copy>,
    run_kernel<DigestSumsArguments, freshet_gpu_digest_sums>,
    run_kernel<DigestChainArguments, freshet_gpu_digest_chain>,
    run_kernel<PackArguments, freshet_gpu_pack>,
    run_kernel<ApplyArguments, freshet_gpu_apply>,
};

union AnyArguments {
  FillArguments fill;
  CopyArguments copy;
  DigestSumsArguments digest_sums;
  DigestChainArguments digest_chain;
  PackArguments pack;
  ApplyArguments apply;
};

}  // namespace

Status run_on_host(const Launch& launch, std::span<const std::byte> arguments, std::uint64_t seed) {
  const auto index = static_cast<std::uint32_t>(launch.kernel);
  if (index >= kKernelCount) return refuse(format("there is no kernel {}", index));
  const std::string_view symbol = symbol_of(launch.kernel);
  if (arguments.size() != argument_bytes_of(launch.kernel)) {
    return refuse(format("the kernel {} takes {} bytes of arguments, not {}", symbol, argument_bytes_of(launch.kernel),
                         arguments.size()));
  }
  if (launch.blocks == 0 || launch.blocks > kBlocksMax || launch.threads == 0 ||
      launch.threads % host::kWarpThreads != 0 || launch.threads > threads_max_of(launch.kernel) ||
      launch.shared_bytes != 0) {
    return refuse(
        format("the kernel {} runs with 1 to {} blocks of 32 to {} threads, a multiple of 32, and no shared "
               "bytes of the launch; wanted: {} blocks, {} threads, {} shared bytes",
               symbol, kBlocksMax, threads_max_of(launch.kernel), launch.blocks, launch.threads, launch.shared_bytes));
  }
  AnyArguments kept;
  std::memcpy(&kept, arguments.data(), arguments.size());
  Status status = host::run_grid({.blocks = launch.blocks,
                                  .threads = launch.threads,
                                  .seed = seed,
                                  .body = kKernelBodies[index],
                                  .arguments = &kept});
  if (!status) return fail(std::move(status).error().with_context(format("kernel {}", symbol)));
  return {};
}

}  // namespace freshet::gpu
