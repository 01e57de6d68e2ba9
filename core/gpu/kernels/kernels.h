// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The kernels by name: what a device runs (core/gpu/kernels/README.md). A kernel's arguments are one struct of the
/// headers
/// *_kernels.h, passed by value.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/result.h"
#include "core/gpu/kernels/copy_kernels.h"
#include "core/gpu/kernels/delta_kernels.h"
#include "core/gpu/kernels/digest_kernels.h"

namespace freshet::gpu {

enum class Kernel : std::uint8_t {
  kFill,         ///< FillArguments.
  kCopy,         ///< CopyArguments.
  kDigestSums,   ///< DigestSumsArguments.
  kDigestChain,  ///< DigestChainArguments.
  kPack,         ///< PackArguments.
  kApply,        ///< ApplyArguments.
};
inline constexpr std::uint32_t kKernelCount = 6;
inline constexpr std::uint32_t kBlocksMax = std::uint32_t{1} << 24;  ///< Of a launch.
/// Devices of an older compute capability than this one's .0 have no kernels.
inline constexpr int kComputeMajorMin = 8;

struct Launch {
  Kernel kernel = Kernel::kFill;
  std::uint32_t blocks = 1;        ///< 1 to kBlocksMax.
  std::uint32_t threads = 256;     ///< Of a block: a multiple of 32, up to threads_max_of(kernel).
  std::uint32_t shared_bytes = 0;  ///< Beyond what a kernel declares: 0, since no kernel wants any.
};

/// The kernel's function in fatbin().
std::string_view symbol_of(Kernel kernel);
std::uint32_t threads_max_of(Kernel kernel);
/// Of the struct of its arguments.
std::size_t argument_bytes_of(Kernel kernel);

/// The kernels for each kind of device that this build knows, and as PTX for later ones; for cuModuleLoadData(). Empty
/// when the build had no CUDA compiler. Stays.
std::span<const std::byte> fatbin();
/// Empty, or why fatbin() is.
std::string_view why_no_fatbin();

/// Runs the same text without a device, its threads as fibers of the calling thread (core/gpu/kernels/host/fibers.h),
/// in an order that `seed` chooses. For tests: it is some thousand times slower than a device.
///   invalid_argument     the launch or the arguments' size is wrong.
///   failed_precondition  the kernel's threads wait for each other in vain: an error in the kernel.
/// Any thread. The memory that the arguments name is the process's own.
Status run_on_host(const Launch& launch, std::span<const std::byte> arguments, std::uint64_t seed = 1);

}  // namespace freshet::gpu
